"""The processes that access an object store, with low priority and without torch.

    python -m ddp_trainer.checkpoint.remote mirror DIRECTORY URL [--keep N] [--rate BYTES]
    python -m ddp_trainer.checkpoint.remote fetch DIRECTORY URL [--newer-than NAME] [--claim]
    python -m ddp_trainer.checkpoint.remote download DIRECTORY URL

Rank 0 starts them, so that it needs no client library, whose threads a fork must not copy. Each
line on standard output is a JSON document. `mirror` ends when standard input ends. The line
`finish` there lets it end after the newest checkpoint is copied.
"""

import argparse
import contextlib
import errno
import json
import os
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ddp_trainer.checkpoint.fence import holder
from ddp_trainer.checkpoint.format import BrokenCheckpointError, CheckpointName
from ddp_trainer.checkpoint.remote.claim import StoreClaim
from ddp_trainer.checkpoint.remote.copying import RateLimit
from ddp_trainer.checkpoint.remote.fetching import download, fetch_newest
from ddp_trainer.checkpoint.remote.mirror import Mirror
from ddp_trainer.checkpoint.remote.urls import open_url
from ddp_trainer.checkpoint.store.directory import DirectoryStore
from ddp_trainer.errors import FencedError, InputError, ReportedError
from ddp_wire.contract import ExitCode
from ddp_wire.processes import end_with_parent, raise_open_file_limit

_LOWEST_PRIORITY = 19


def main(arguments: Sequence[str]) -> int:
    """Run one of the processes. Return the exit code."""
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # The end of standard input counts.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(options.parent)
    raise_open_file_limit()  # A checkpoint in parts may have thousands of files.
    with contextlib.suppress(OSError):
        os.nice(_LOWEST_PRIORITY if options.command == "mirror" else 0)
    try:
        return int(options.run(options))
    except OSError as error:
        _print({"error": error.strerror or str(error), "errno": error.errno})
    except ReportedError as error:
        # The user must correct it, as with a wrong permission.
        _print({"error": str(error).removeprefix("checkpoint: "), "errno": errno.EACCES})
    return ExitCode.FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ddp_trainer.checkpoint.remote")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, run in (("mirror", _mirror), ("fetch", _fetch), ("download", _download)):
        command = commands.add_parser(name)
        command.set_defaults(run=run)
        command.add_argument("directory", type=Path)
        command.add_argument("url")
        command.add_argument("--parent", type=int, default=os.getppid())
    commands.choices["mirror"].add_argument("--keep", type=int, default=3)
    commands.choices["mirror"].add_argument("--rate", type=float)
    commands.choices["fetch"].add_argument("--newer-than", type=CheckpointName.parse)
    commands.choices["fetch"].add_argument("--claim", action="store_true")
    return parser


def _fetch(options: argparse.Namespace) -> ExitCode:
    """Claim the store if asked, and copy its newest checkpoint to the directory."""
    store = open_url(options.url)
    own = holder(options.directory) if options.claim else None
    if own is not None:
        with contextlib.suppress(FencedError):  # A newer attempt of the job writes to it.
            StoreClaim(store, own).open()
    _print(asdict(fetch_newest(store, options.directory, options.url, options.newer_than)))
    return ExitCode.OK


def _download(options: argparse.Namespace) -> ExitCode:
    """Copy what is at the address to an empty folder."""
    try:
        _print({"path": str(download(options.url, options.directory))})
    except BrokenCheckpointError as error:
        raise InputError(f"it is damaged: {error}") from error
    return ExitCode.OK


def _mirror(options: argparse.Namespace) -> ExitCode:
    """Copy checkpoints until standard input ends, or until `finish` and the newest is copied."""
    finish = threading.Event()
    threading.Thread(target=_read_input, args=(finish,), daemon=True).start()
    store = open_url(options.url)
    rate = RateLimit(options.rate)
    mirror = Mirror(DirectoryStore(options.directory), store, keep=options.keep, pace=rate)
    while True:
        finishing = finish.is_set()
        wait = mirror.turn()
        _print(mirror.status.document())
        if mirror.status.ended or (finishing and mirror.complete):
            return ExitCode.OK
        finish.wait(wait) if not finishing else threading.Event().wait(wait)


def _read_input(finish: threading.Event) -> None:
    for line in sys.stdin:
        if line.strip() == "finish":
            finish.set()
    os._exit(ExitCode.OK)


def _print(document: dict[str, Any]) -> None:
    print(json.dumps(document), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
