"""Record the Kubernetes nodes that lost a member, so that no job grows onto an unsteady one.

A node that fails and returns would otherwise cause two changes of the job's size each time.
"""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta

from ddp_operator.api.members import DepartureStatus
from ddp_operator.api.status import DDPJobStatus

_REMEMBERED = timedelta(hours=1)
_MOST = 32
"""Maximum number of departures in the status."""
_UNSTEADY = 2
"""Number of departures within an hour from which a job does not grow onto the Kubernetes node."""


def with_departures(status: DDPJobStatus, nodes: Iterable[str], now: datetime) -> DDPJobStatus:
    """Return the status in which these Kubernetes nodes are recorded as left by a member now."""
    known = _recent(status, now)
    new = [DepartureStatus(node=n, time=now.replace(microsecond=0)) for n in sorted(set(nodes))]
    kept = [*known, *new][-_MOST:]
    return status if kept == status.departures else status.model_copy(update={"departures": kept})


def unsteady_nodes(status: DDPJobStatus, now: datetime) -> frozenset[str]:
    """Return the Kubernetes nodes on which members were lost twice within the last hour."""
    counts = Counter(departure.node for departure in _recent(status, now))
    return frozenset(node for node, count in counts.items() if count >= _UNSTEADY)


def usable_from(status: DDPJobStatus, node: str, now: datetime) -> datetime:
    """Return the time from which a job may grow onto an unsteady Kubernetes node again."""
    times = sorted(one.time for one in _recent(status, now) if one.node == node)
    return times[-_UNSTEADY] + _REMEMBERED if len(times) >= _UNSTEADY else now


def _recent(status: DDPJobStatus, now: datetime) -> list[DepartureStatus]:
    return [one for one in status.departures if abs(now - one.time) < _REMEMBERED]
