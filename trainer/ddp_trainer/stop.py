"""The wish to stop, from a signal."""

import signal
from types import FrameType


class StopFlag:
    """Remembers that SIGTERM or SIGINT came, and does nothing else.

    The handler runs at any point of the program, even inside a collective, so the ranks agree
    later, after an update, where all of them are in the same place.
    """

    def __init__(self) -> None:
        self.signal_name: str | None = None
        """Name of the first signal, as SIGTERM."""

    @property
    def requested(self) -> bool:
        """Whether a signal came."""
        return self.signal_name is not None

    def install(self) -> None:
        """Handles SIGTERM and SIGINT from here on. Main thread only."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)

    def ignore(self) -> None:
        """Ignores both from here on, so that a late signal cannot replace the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.signal_name is None:
            self.signal_name = signal.Signals(number).name
