"""Stop requests from SIGTERM and SIGINT."""

import signal
from types import FrameType


class StopFlag:
    """A flag that the first SIGTERM or SIGINT sets.

    The handler only sets the flag, because it may run at any point, even inside a collective. The
    ranks agree to stop later, after an update, where all ranks are at the same point.
    """

    def __init__(self) -> None:
        self.signal_name: str | None = None
        """Name of the first signal, for example SIGTERM. None before any signal."""

    @property
    def requested(self) -> bool:
        """Whether a signal has arrived."""
        return self.signal_name is not None

    def install(self) -> None:
        """Install the handler for SIGTERM and SIGINT. Call it in the main thread only."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)

    def ignore(self) -> None:
        """Ignore both signals from now on, so that a late signal cannot replace the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.signal_name is None:
            self.signal_name = signal.Signals(number).name
