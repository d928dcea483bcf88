"""Which attempt to run next, by the pod's annotation file and by the operator's direct requests."""

from enum import Enum
from pathlib import Path

from ddp_wire.contract import ATTEMPT_FILE, ATTEMPT_STOP, AttemptOrder


class Stop:
    """Order to stop the ranks and exit."""


STOP = Stop()


class Interruption(Enum):
    """Reason for stopping an attempt before it ends by itself."""

    NEXT_ATTEMPT = "next attempt"
    """The operator ordered a newer attempt."""
    STOP = "stop"
    """The run is to stop."""


class AttemptOrders:
    """Attempt orders of one agent.

    An order arrives twice: first as a direct request of the operator, later through the file that
    the kubelet keeps equal to the pod's annotation. The highest attempt number counts, and `STOP`
    is final.
    """

    def __init__(self, job_uid: str, pod_info_dir: Path) -> None:
        self._job_uid, self._path = job_uid, pod_info_dir / ATTEMPT_FILE
        self._last: int | Stop | None = None
        self._requested: int | None = None
        self._stopped = False

    def accept(self, order: AttemptOrder) -> bool:
        """Record a direct request. Return False if it is for another job's agent.

        Safe to call from any thread.
        """
        if order.job_uid != self._job_uid:
            return False
        self._requested = max(self._requested or 0, order.attempt)
        return True

    def stop(self) -> None:
        """Order the run to stop. A signal handler may call it."""
        self._stopped = True

    def newest(self) -> int | Stop | None:
        """Return the newest order: an attempt number from 1, `STOP`, or None before the first.

        Unreadable or half-written file content changes nothing.
        """
        try:
            text = self._path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            text = ""
        if self._stopped or text == ATTEMPT_STOP:
            self._last = STOP
        if isinstance(self._last, Stop):
            return self._last
        known = [self._last, self._requested, int(text) if text.isdigit() else None]
        self._last = max((number for number in known if number is not None), default=None)
        return self._last

    def interruption(self, attempt: int) -> Interruption | None:
        """Return the reason, if any, for stopping this attempt now."""
        order = self.newest()
        if isinstance(order, Stop):
            return Interruption.STOP
        return Interruption.NEXT_ATTEMPT if order is not None and order > attempt else None
