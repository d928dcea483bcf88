"""Check one checkpoint without torch: `python -m ddp_trainer.checkpoint DIRECTORY_OR_URL`.

The exit code is 0 if each file matches the manifest. Otherwise the command prints one sentence
about the damage.
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ddp_trainer.checkpoint.format import BrokenCheckpointError, CheckpointName, verify
from ddp_trainer.checkpoint.remote.outline import write_outline
from ddp_trainer.checkpoint.remote.urls import open_url
from ddp_trainer.config.addresses import is_url
from ddp_trainer.errors import InputError
from ddp_wire.contract import ExitCode


def main(arguments: Sequence[str]) -> int:
    """Check a checkpoint. Return the exit code."""
    if len(arguments) != 1:
        print("usage: python -m ddp_trainer.checkpoint DIRECTORY_OR_URL", file=sys.stderr)
        return ExitCode.BAD_INPUT
    try:
        if is_url(arguments[0]):
            _verify_remote(arguments[0].rstrip("/"))
        else:
            verify(Path(arguments[0]))
    except (BrokenCheckpointError, InputError, OSError, ValueError) as error:
        print(f"checkpoint: {arguments[0]} is not usable: {error}", file=sys.stderr)
        return ExitCode.FAILED
    return ExitCode.OK


def _verify_remote(url: str) -> None:
    parent, _, name = url.rpartition("/")
    if CheckpointName.parse(name) is None:
        raise InputError("the address must end with the name of a checkpoint")
    with tempfile.TemporaryDirectory() as folder:
        wrong = write_outline(open_url(parent), name, Path(folder), checksums=True)
        if wrong is not None:
            raise BrokenCheckpointError(wrong)
        verify(Path(folder) / name, checksums=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
