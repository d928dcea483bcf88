"""Run a command that gets SIGTERM when its starter ends, as if its pod were deleted.

Without it the pods of a killed `ddpjob run` would train on for ever, and hold their ports. It is a
separate program, because a function that runs between fork and exec is unsafe where there are
threads.

    python3 guard.py PARENT COMMAND [ARGUMENT ...]
"""

import contextlib
import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Become the command. End at once if the parent process has ended already."""
    parent, *command = arguments
    with contextlib.suppress(AttributeError):  # Only Linux has prctl.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(parent):
        sys.exit(128 + signal.SIGTERM)
    os.execvp(command[0], command)  # noqa: S606 (the command of the pod)


if __name__ == "__main__":
    main(sys.argv[1:])
