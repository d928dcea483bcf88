"""Queue of jobs whose pods must be listed, so that many silent agents cause few requests."""

import heapq

from ddp_operator.cluster.base import Key
from ddp_operator.limits import LIST_AFTER_SECONDS, LIST_OF_JOB_SECONDS, LISTS
from ddp_operator.runtime.token_bucket import TokenBucket


class ListTurns:
    """Jobs that wait for a list of their pods, in the order of their turns.

    All times are in seconds of one monotonic clock.
    """

    def __init__(self) -> None:
        self._due: list[tuple[float, Key]] = []
        """Heap of the waiting jobs."""
        self._waiting: set[Key] = set()
        self._last: dict[Key, float] = {}
        """Times of the lists that still delay the next one of the same job."""
        self._lists = TokenBucket(LISTS, 0.0)

    def add(self, key: Key, now: float) -> None:
        """Queue a job for a list of its pods, unless it is already queued."""
        if key in self._waiting:
            return
        self._waiting.add(key)
        earliest = self._last.get(key, -LIST_OF_JOB_SECONDS) + LIST_OF_JOB_SECONDS
        heapq.heappush(self._due, (max(now + LIST_AFTER_SECONDS, earliest), key))

    def seconds_until_next(self, now: float) -> float | None:
        """Return the seconds until the next turn, or None if no job waits."""
        if not self._due:
            return None
        return max(0.0, self._due[0][0] - now, self._lists.seconds_until_token(now))

    def next(self, now: float) -> Key | None:
        """Remove and return the job whose turn it is, or return None if no turn is due."""
        if self.seconds_until_next(now) != 0.0:
            return None
        _, key = heapq.heappop(self._due)
        self._waiting.discard(key)
        return key

    def record_list(self, key: Key, now: float) -> None:
        """Record that a job uses its turn. An unused turn does not delay other jobs."""
        self._lists.take(now)
        last = {k: at for k, at in self._last.items() if now - at < LIST_OF_JOB_SECONDS}
        self._last = last | {key: now}
