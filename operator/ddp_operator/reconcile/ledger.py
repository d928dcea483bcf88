"""Charge the wall-clock time of a job to the buckets of its goodput ledger."""

from collections.abc import Mapping
from datetime import datetime, timedelta

from ddp_operator.api.goodput import Bucket, GoodputStatus


class Ledger:
    """Goodput ledger: milliseconds of one job by bucket, without gaps or overlaps.

    The position is the time up to which the ledger is complete, in milliseconds since the creation
    of the job. The position is the sum of all buckets, so a wrong clock cannot make them differ.
    """

    def __init__(self, created: datetime, known: GoodputStatus | None) -> None:
        """Continue an existing ledger, or begin a new one at the creation of the job."""
        known = known or GoodputStatus()
        self._created = created
        self._buckets = {bucket: known.milliseconds(bucket) for bucket in Bucket}

    @property
    def position(self) -> int:
        """Time up to which the ledger is complete, in milliseconds since the creation."""
        return sum(self._buckets.values())

    def at(self, time: datetime) -> int:
        """Return a time as milliseconds since the creation of the job."""
        return (time - self._created) // timedelta(milliseconds=1)

    def charge(self, until: int, shares: Mapping[Bucket, float] | Bucket) -> None:
        """Charge the time from the position until a later time, if it is later.

        Args:
            until: The new position.
            shares: The bucket, or weights that split the time between buckets. If all weights are
                0, the first bucket gets the time.
        """
        passed = until - self.position
        if passed <= 0:
            return
        weights = {shares: 1.0} if isinstance(shares, Bucket) else shares
        total = sum(weights.values())
        reached = given = 0.0
        for bucket, weight in weights.items():
            reached += weight
            upto = round(passed * min(1.0, reached / total)) if total > 0 else passed
            self._buckets[bucket] += int(upto - given)
            given = upto

    def fields(self) -> dict[str, int | str | None]:
        """Return the ledger as fields of the status."""
        counted = self.position - self._buckets[Bucket.SUSPENDED]
        share = 100 * self._buckets[Bucket.TRAINING] / counted if counted else None
        percent = None if share is None else f"{share:.1f}%"
        return {bucket.field: ms for bucket, ms in self._buckets.items()} | {"percent": percent}
