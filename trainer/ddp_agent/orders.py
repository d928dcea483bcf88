"""Receive attempt orders: from the operator's requests and from the pod's annotation file.

Process: agent (loop; threads of the HTTP server accept requests).
"""

from enum import Enum
from pathlib import Path

from ddp_wire.contract import ATTEMPT_FILE, ATTEMPT_STOP
from ddp_wire.messages import AttemptOrder
from ddp_wire.orders import Order, order_from_text

MOST_AHEAD = 16
"""Maximum number of attempts by which a direct request may be ahead of the annotation file.

The kubelet writes the file about a second after the operator's patch. Without this limit any
process that reaches the port could order an attempt so high that all later orders are ignored.
"""


class Stop:
    """Order to stop the ranks and exit."""


STOP = Stop()


class Interruption(Enum):
    """Reason for stopping an attempt before it ends by itself."""

    NEXT_ATTEMPT = "next attempt"
    """The operator ordered a newer attempt."""
    RESIZE = "resize"
    """The operator ordered a newer attempt with other members, and the ranks save first."""
    STOP = "stop"
    """The operator ordered the end of the run."""
    PEER_REPLACED = "peer replaced"
    """The agent of another node was replaced after the start, so the attempt cannot continue."""
    UNREACHABLE = "unreachable"
    """The network separates this node from the other members."""
    HUNG = "hung"
    """The ranks make no progress, and the operator has not ordered the next attempt."""


class AttemptOrders:
    """Store of the attempt orders of one agent.

    Each order arrives twice: first as a direct request from the operator, later in the file to
    which the kubelet copies the pod's annotation. The order with the highest attempt number counts,
    and `STOP` is final.
    """

    def __init__(self, job_uid: str, pod_info_dir: Path) -> None:
        self._job_uid, self._path = job_uid, pod_info_dir / ATTEMPT_FILE
        self._last: Order | Stop | None = None
        self._requested: Order | None = None
        self._stopped = False

    def accept(self, request: AttemptOrder) -> bool:
        """Record a direct request. Safe to call from any thread.

        Returns:
            False if the request is for another job's agent or too far ahead of the annotation file.
            The file delivers the operator's order in any case.

        Raises:
            ValueError: The members are not valid node ranges, or are empty.
        """
        order = request.order
        annotated = order_from_text(self._read_file())
        most = (annotated.attempt if annotated is not None else 0) + MOST_AHEAD
        if request.job_uid != self._job_uid or order.attempt > most:
            return False
        self._requested = _newest(self._requested, order)
        return True

    def stop(self) -> None:
        """Order the end of the run. A signal handler may call this method."""
        self._stopped = True

    def newest(self) -> Order | Stop | None:
        """Return the newest order: an attempt's order, `STOP`, or None before the first order.

        Unreadable or half-written file content changes nothing.
        """
        text = self._read_file()
        if self._stopped or text == ATTEMPT_STOP:
            self._last = STOP
        if isinstance(self._last, Stop):
            return self._last
        self._last = _newest(self._last, self._requested, order_from_text(text))
        return self._last

    def interruption(self, attempt: int) -> Interruption | None:
        """Return the reason why this attempt must stop now, or None."""
        order = self.newest()
        if isinstance(order, Stop):
            return Interruption.STOP
        if order is None or order.attempt <= attempt:
            return None
        return Interruption.RESIZE if order.save else Interruption.NEXT_ATTEMPT

    def _read_file(self) -> str:
        """Return the content of the annotation file, or "" if it cannot be read."""
        try:
            return self._path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            return ""


def _newest(*orders: Order | None) -> Order | None:
    """Return the order with the highest attempt number; the first one if several are equal."""
    known = [order for order in orders if order is not None]
    return max(known, key=lambda order: order.attempt, default=None)
