"""A run that is told to end (SIGTERM) cleans up as one that is interrupted by hand (Ctrl-C)."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from types import FrameType
from typing import Final

INTERRUPTED: Final = 130
"""Exit status of a run that was interrupted, as shells have it."""


class Terminated(KeyboardInterrupt):
    """SIGTERM came."""


def clean_up_when_terminated() -> None:
    """Let the first SIGTERM raise `Terminated` in this process; later ones do nothing.

    A process group and a parent may each send one, and the second must not end the clean-up.
    """
    signal.signal(signal.SIGTERM, _interrupt)


def script(main: Callable[[], None]) -> None:
    """Run a script's `main`; interrupted, it ends with status 130 after its clean-up."""
    clean_up_when_terminated()
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def wait_for(child: subprocess.Popen[bytes]) -> int:
    """Wait for a process that was started in the open; its exit status.

    Raises:
        KeyboardInterrupt: This process is to end; the child was told so too, and has ended.
    """
    try:
        return child.wait()
    except KeyboardInterrupt as interruption:
        if isinstance(interruption, Terminated):
            child.terminate()  # Ctrl-C reaches it without us.
        child.wait()
        raise


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Terminated
