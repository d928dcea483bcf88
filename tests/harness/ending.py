"""Make SIGTERM clean up a run as Ctrl-C does."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from types import FrameType
from typing import Final

INTERRUPTED: Final = 130
"""Exit code of an interrupted run, as shells define it."""


class Terminated(KeyboardInterrupt):
    """Raised when SIGTERM arrives."""


def clean_up_when_terminated() -> None:
    """Raise `Terminated` in this process at the first SIGTERM, and ignore later ones.

    A process group and a parent may each send one, and the second must not interrupt the clean-up.
    """
    signal.signal(signal.SIGTERM, _interrupt)


def script(main: Callable[[], None]) -> None:
    """Run a script's `main`. After an interrupt it exits with code 130 once it has cleaned up."""
    clean_up_when_terminated()
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def wait_for(child: subprocess.Popen[bytes]) -> int:
    """Wait for a child that shares the terminal, and return its exit code.

    Raises:
        KeyboardInterrupt: This process was interrupted. The child was terminated and has ended.
    """
    try:
        return child.wait()
    except KeyboardInterrupt as interruption:
        if isinstance(interruption, Terminated):
            child.terminate()  # The terminal sends Ctrl-C to the child too.
        child.wait()
        raise


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Terminated
