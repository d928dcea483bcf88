"""Read the newest Event about a claim that waits for its volume, at growing intervals.

Only the provisioner knows why a claim waits, and it reports that in Events alone.
"""

import logging
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

from ddp_operator.cluster.base import ClusterError
from ddp_operator.limits import EVENT_READS
from ddp_operator.reconcile import claims
from ddp_operator.reconcile.world import World

_log = logging.getLogger(__name__)

_FIRST_READ = timedelta(seconds=EVENT_READS.first)
_LONGEST_INTERVAL = timedelta(seconds=EVENT_READS.longest)

Read = Callable[[str, str], Awaitable[str | None]]
"""Function that returns the newest Event about the object with a uid, or None."""


class ClaimEvents:
    """Newest Event about the claim of one job while the claim waits."""

    __slots__ = ("_interval", "_next", "_read", "text")

    def __init__(self, read: Read) -> None:
        """Create a reader that has read no Event."""
        self._read = read
        self._next: datetime | None = None
        self._interval = _FIRST_READ
        self.text: str | None = None
        """Reason and message of the newest Event, or None if the claim does not wait."""

    async def look(self, world: World, *, active: bool) -> None:
        """Read the newest Event if the job is active, its claim waits and a read is due."""
        claim = claims.existing_claim(world) if active else None
        if claim is None or (claim.get("status") or {}).get("phase") == "Bound":
            self._next, self._interval, self.text = None, _FIRST_READ, None
            return
        now = world.now
        if self._next is None:
            self._next = now + _FIRST_READ
        # A next read far in the future means that the clock was set back.
        if timedelta(0) < self._next - now <= self._interval:
            return
        try:
            uid = claim["metadata"]["uid"]
            self.text = await self._read(world.job.metadata.namespace, uid)
        except ClusterError as error:
            _log.warning("the Events of a claim cannot be read: %s", error)
        self._interval = min(_LONGEST_INTERVAL, 2 * self._interval)
        self._next = now + self._interval
