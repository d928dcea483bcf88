"""Run a command, and send it SIGTERM when the process that started it ends.

Otherwise the pods of a killed `ddpjob run` would continue to train and keep their ports. The guard
is a separate program, because code that runs between fork and exec is unsafe in a process with
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
    """Replace this process by the command. End at once if the parent process has already ended."""
    parent, *command = arguments
    with contextlib.suppress(AttributeError):  # Only Linux has prctl.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(parent):
        sys.exit(128 + signal.SIGTERM)
    os.execvp(command[0], command)  # noqa: S606 (the command of the pod)


if __name__ == "__main__":
    main(sys.argv[1:])
