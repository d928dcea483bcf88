"""The command line: `ddp-trainer COMMAND`, or `python -m ddp_trainer COMMAND`."""

import argparse
import os
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import NoReturn

from ddp_trainer.commands import bench, check, converge, export, profile, train, verify
from ddp_trainer.errors import InputError, Refusal
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.stop import StopFlag
from ddp_wire.contract import ExitCode

LAST_WORD_SECONDS = 2.0
"""How long other ranks leave the first one to say what is wrong before they end."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code.

    A user's mistake is one sentence on standard error, from rank 0 only. A failure is a traceback.
    Both end the process at once if it is in a process group: neither peers nor threads that hang
    may keep it alive.
    """
    stop = StopFlag()
    stop.install()
    try:
        code = _run(sys.argv[1:] if arguments is None else arguments, os.environ, stop)
    except Refusal as refusal:
        code = _refuse(refusal, stop)
    except Exception:  # noqa: BLE001 - the end of the process for whatever it was
        traceback.print_exc()
        code = ExitCode.FAILED
    stop.ignore()
    if code in (ExitCode.BAD_INPUT, ExitCode.FAILED):
        _end_now_if_joined(code)
    return code


def _run(arguments: Sequence[str], environ: Mapping[str, str], stop: StopFlag) -> ExitCode:
    parser = _Parser(prog="ddp-trainer", description="Trains a task on any number of ranks.")
    commands = parser.add_subparsers(dest="command", required=True)
    for command in (train, check, verify, converge, bench, export, profile):
        command.add_to(commands)
    options, rest = parser.parse_known_args(arguments)
    code: ExitCode = options.run(options, rest, environ, stop)
    return code


class _Parser(argparse.ArgumentParser):
    """A parser that raises instead of printing its usage on every rank."""

    def __init__(self, **settings: object) -> None:
        super().__init__(allow_abbrev=False, **settings)  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{self.prog}: {message}")


def _refuse(refusal: Refusal, stop: StopFlag) -> ExitCode:
    """Says the sentence on rank 0, or where it is known.

    The launcher ends all ranks as soon as one has ended. So the others wait until it does, for a
    moment, or else rank 0 might be ended before it has spoken.
    """
    try:
        first = Ranks.from_environment(os.environ).is_first
    except InputError:
        first = True
    if first or refusal.own:
        print(refusal, file=sys.stderr, flush=True)
    else:
        deadline = time.monotonic() + LAST_WORD_SECONDS
        while not stop.requested and time.monotonic() < deadline:
            time.sleep(0.05)
    return refusal.code


def _end_now_if_joined(code: ExitCode) -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
