"""Read why Kueue does not admit the pods of a job.

Kueue writes the reason into the Workload of the pods, which carries no label of this operator. So
the operator reads the Workload of a job while Kueue holds its pods, at growing intervals.
"""

import logging
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

from ddp_operator.api.gang import GangType
from ddp_operator.builders.gangs.schedulers import recorded_gang
from ddp_operator.cluster.base import ClusterError
from ddp_operator.limits import WORKLOAD_READS
from ddp_operator.reconcile.gangs import is_held_by_queue
from ddp_operator.reconcile.world import World

_log = logging.getLogger(__name__)

_FIRST_READ = timedelta(seconds=WORKLOAD_READS.first)
_LONGEST_INTERVAL = timedelta(seconds=WORKLOAD_READS.longest)

Read = Callable[[str, str], Awaitable[str]]
"""Function that returns why Kueue does not admit the Workload with a namespace and a name."""


class QueueMessages:
    """Newest reason why Kueue does not admit the pods of one job."""

    __slots__ = ("_due", "_group", "_interval", "_read", "message")

    def __init__(self, read: Read) -> None:
        self._read = read
        self._group: str | None = None
        self._due: datetime | None = None
        self._interval = _FIRST_READ
        self.message = ""
        """The reason, or "" if Kueue holds no pods or tells none."""

    async def look(self, world: World) -> None:
        """Read the Workload of a job that Kueue holds, if a read is due."""
        gang = recorded_gang(world.job)
        if gang is None or gang.type is not GangType.KUEUE or not is_held_by_queue(world):
            self._group, self.message = None, ""
            return
        if gang.group != self._group or self._due is None:
            self._group, self.message = gang.group, ""
            self._interval, self._due = _FIRST_READ, world.now + _FIRST_READ
            return
        # A due time in the far future means that the clock was set back.
        if world.now < self._due <= world.now + self._interval:
            return
        try:
            self.message = await self._read(world.job.metadata.namespace, gang.group)
        except ClusterError as error:
            _log.warning("the Workload %s cannot be read: %s", gang.group, error)
        self._interval = min(_LONGEST_INTERVAL, 2 * self._interval)
        self._due = world.now + self._interval
