"""Attempt orders: from the operator's direct requests and from the pod's annotation file.

Process: agent (loop; threads of the HTTP server accept requests).
"""

from enum import Enum
from pathlib import Path

from ddp_wire.contract import ATTEMPT_FILE, ATTEMPT_STOP
from ddp_wire.messages import AttemptOrder

MOST_AHEAD = 16
"""Most attempts by which a direct request may be ahead of the annotation file.

The kubelet writes the file about a second after the operator's patch. Without this limit any
process that reaches the port could order an attempt so high that all later orders are ignored.
"""
_MOST_DIGITS = 9


class Stop:
    """Order to stop the ranks and exit."""


STOP = Stop()


class Interruption(Enum):
    """Reason for stopping an attempt before it ends by itself."""

    NEXT_ATTEMPT = "next attempt"
    """The operator ordered a newer attempt."""
    STOP = "stop"
    """The run is to stop."""
    PEER_REPLACED = "peer replaced"
    """The agent of another node was replaced after the start, so the attempt cannot go on."""
    UNREACHABLE = "unreachable"
    """The network keeps this node from the others."""
    HUNG = "hung"
    """Ranks make no progress, and the operator has not ordered the next attempt."""


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
        """Record a direct request. Safe to call from any thread.

        Returns:
            False if the request is for another job's agent or too far ahead of the annotation file.
            The file delivers the operator's order in any case.
        """
        annotated = _to_number(self._read_file()) or 0
        if order.job_uid != self._job_uid or order.attempt > annotated + MOST_AHEAD:
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
        text = self._read_file()
        if self._stopped or text == ATTEMPT_STOP:
            self._last = STOP
        if isinstance(self._last, Stop):
            return self._last
        known = [self._last, self._requested, _to_number(text)]
        self._last = max((number for number in known if number is not None), default=None)
        return self._last

    def interruption(self, attempt: int) -> Interruption | None:
        """Return the reason, if any, for stopping this attempt now."""
        order = self.newest()
        if isinstance(order, Stop):
            return Interruption.STOP
        return Interruption.NEXT_ATTEMPT if order is not None and order > attempt else None

    def _read_file(self) -> str:
        """Return the content of the annotation file, or "" if it cannot be read."""
        try:
            return self._path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            return ""


def _to_number(text: str) -> int | None:
    return int(text) if text.isdigit() and len(text) <= _MOST_DIGITS else None
