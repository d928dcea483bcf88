"""Check one checkpoint without torch: `python -m ddp_trainer.checkpoint DIRECTORY`.

The exit code is 0 if each file matches the manifest. Otherwise the command prints one sentence
about the damage.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from ddp_trainer.checkpoint.format import BrokenCheckpointError, verify
from ddp_trainer.errors import InputError
from ddp_wire.contract import ExitCode


def main(arguments: Sequence[str]) -> int:
    """Check a checkpoint. Return the exit code."""
    if len(arguments) != 1:
        print("usage: python -m ddp_trainer.checkpoint DIRECTORY", file=sys.stderr)
        return ExitCode.BAD_INPUT
    try:
        verify(Path(arguments[0]))
    except (BrokenCheckpointError, InputError, OSError, ValueError) as error:
        print(f"checkpoint: {arguments[0]} is not usable: {error}", file=sys.stderr)
        return ExitCode.FAILED
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
