"""Work queue of keys with deduplication, delays and backoff."""

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from ddp_operator.limits import EARLY_RETRY_SECONDS, RECONCILE_RETRIES, URGENT_IN_A_ROW, Backoff

K = TypeVar("K", bound=Hashable)
_TIMER_SECONDS = 0.001
"""Seconds by which a timer may fire too early."""


class _Lane(Generic[K]):
    """Ready keys of one group, urgent keys first."""

    def __init__(self) -> None:
        self._ready: deque[K] = deque()
        self._ready_urgent: deque[K] = deque()
        self._urgent_in_a_row = 0
        self._waiting: dict[K, bool] = {}
        """Keys that are ready, with whether they are urgent. A key may be in both deques. Then its
        second entry is skipped."""
        self._urgent_count = 0
        """Number of ready keys that are urgent."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def has(self, *, urgent: bool) -> bool:
        """Return whether the group has an urgent key, or any key at all."""
        return self._urgent_count > 0 if urgent else bool(self._waiting)

    def add(self, key: K, *, urgent: bool) -> None:
        """Add a key. Move an urgent key before all keys that are not urgent."""
        if key not in self._waiting or (urgent and not self._waiting[key]):
            self._waiting[key] = urgent
            self._urgent_count += urgent
            (self._ready_urgent if urgent else self._ready).append(key)

    def next(self, *, urgent: bool) -> K:
        """Remove and return the next urgent key, or the next key. The group must have one."""
        while True:
            others_turn = not urgent and self._ready and self._urgent_in_a_row >= URGENT_IN_A_ROW
            from_urgent = bool(self._ready_urgent) and not others_turn
            key = (self._ready_urgent if from_urgent else self._ready).popleft()
            was_urgent = self._waiting.pop(key, None)
            if was_urgent is not None:
                self._urgent_count -= was_urgent
                self._urgent_in_a_row = self._urgent_in_a_row + 1 if from_urgent else 0
                return key


class WorkQueue(Generic[K]):
    """Queue of deduplicated keys with delays and per-key exponential backoff.

    If a key is added while a worker processes it, the queue returns the key again afterwards. So no
    change is missed, and two workers never process the same key at once. The semantics are those of
    client-go's workqueue. In addition, groups of keys take turns, so that one namespace does not
    delay another.
    """

    def __init__(
        self,
        *,
        group_of: Callable[[K], Hashable] = lambda _: None,
        backoff: Backoff = RECONCILE_RETRIES,
        seed: int | None = None,
    ) -> None:
        """Create an empty queue.

        Jitter shortens the waits of `backoff` by up to a quarter. `group_of` is a function that
        returns the group of a key.
        """
        self._group_of = group_of
        self._backoff = backoff
        self._random = random.Random(seed)  # noqa: S311 (jitter)
        self._lanes: dict[Hashable, _Lane[K]] = {}
        """Ready keys by group. The group at the front is served next."""
        self._waiting_since: dict[K, float] = {}
        """Monotonic time at which each of these keys became ready, oldest first."""
        self._active: set[K] = set()
        self._added_while_active: dict[K, bool] = {}
        self._not_urgent: set[K] = set()
        """Keys that do not count as urgent until they are handed out again."""
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}
        self._held_until: dict[K, float] = {}
        """Loop time before which a failed key is not handed out, not even after an event."""
        self._backoff_ends: dict[K, float] = {}
        """Loop time at which the backoff of a failed key ends."""
        self._wakeup = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting_since)

    def oldest_seconds(self) -> float:
        """Return the seconds that the oldest ready key has waited for a worker; 0 without a key.

        Any thread may call it.
        """
        since = next(iter(self._waiting_since.values()), None)
        return 0.0 if since is None else time.monotonic() - since

    @property
    def active(self) -> frozenset[K]:
        """Return the keys that workers process now."""
        return frozenset(self._active)

    def add(self, key: K, *, urgent: bool = False) -> None:
        """Add a key for the next free worker, after any delay of `retry` or `pause`.

        Urgent keys go first. So a job whose pods run is shown as Running even while a thousand new
        jobs wait for their pods. A key is also urgent at the end of its delay, because an urgent
        change may have been delayed or a recovery may be due.
        """
        urgent = urgent and key not in self._not_urgent
        remaining = (
            self._held_until.get(key, 0.0) - asyncio.get_running_loop().time()
            if self._held_until
            else 0.0
        )
        if remaining > 0.0:
            self.add_after(key, remaining)
        elif key in self._active:
            self._added_while_active[key] = urgent or self._added_while_active.get(key, False)
        else:
            self._lanes.setdefault(self._group_of(key), _Lane()).add(key, urgent=urgent)
            self._waiting_since.setdefault(key, time.monotonic())
            self._wakeup.set()

    def add_again(self, key: K) -> None:
        """Add a key that is being processed again, behind all keys that wait now.

        Until then the key does not count as urgent, because its own work causes events.
        """
        self._not_urgent.add(key)
        self._added_while_active[key] = False

    def add_after(self, key: K, seconds: float) -> None:
        """Add a key after a delay in seconds. An earlier pending delay stays in effect."""
        loop = asyncio.get_running_loop()
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= loop.time() + seconds:
                return
            timer.cancel()
        self._timers[key] = loop.call_later(seconds, self._expire, key)

    def _expire(self, key: K) -> None:
        self._timers.pop(key, None)
        self.add(key, urgent=True)

    async def get(self, *, urgent: bool = False) -> K:
        """Wait for the next key, or the next urgent key. The worker must call `done` with it."""
        while not any(lane.has(urgent=urgent) for lane in self._lanes.values()):
            self._wakeup.clear()
            await self._wakeup.wait()
        key = self._next(urgent=urgent)
        self._active.add(key)
        self._not_urgent.discard(key)
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        return key

    def _next(self, *, urgent: bool) -> K:
        """Remove and return the next urgent key that is ready, or the next ready key.

        A key must be ready.
        """
        group = next(group for group, lane in self._lanes.items() if lane.has(urgent=urgent))
        lane = self._lanes.pop(group)
        key = lane.next(urgent=urgent)
        if lane:
            self._lanes[group] = lane  # At the end: the other groups come first.
        del self._waiting_since[key]
        return key

    def done(self, key: K) -> None:
        """Mark a key as processed. Queue it again if it was added during the processing."""
        self._active.discard(key)
        if key in self._added_while_active:
            self.add(key, urgent=self._added_while_active.pop(key))

    def retry(self, key: K, at_least: float | None = None) -> float:
        """Add a failed key again after its backoff.

        An event may release the key before its backoff ends, at most once per second. A failure of
        this early try neither doubles the backoff nor moves its end.

        Args:
            key: The key.
            at_least: Minimum seconds of the wait: the server's Retry-After. Events do not shorten
                it.

        Returns:
            Seconds until the key is released.
        """
        now = asyncio.get_running_loop().time()
        delay = self._backoff_ends.get(key, 0.0) - now
        if delay <= _TIMER_SECONDS:
            self._failures[key] = failures = self._failures.get(key, 0) + 1
            delay = self._backoff.after(failures) * self._random.uniform(0.75, 1.0)
            self._backoff_ends[key] = now + delay
        self._held_until[key] = now + max(min(delay, EARLY_RETRY_SECONDS), at_least or 0.0)
        delay = max(delay, at_least or 0.0)
        self.add_after(key, delay)
        return delay

    def pause(self, key: K, seconds: float) -> None:
        """Delay a key for this many seconds. All changes until then cause only one reconcile."""
        if seconds > 0.0:
            until = asyncio.get_running_loop().time() + seconds
            self._held_until[key] = max(until, self._held_until.get(key, 0.0))

    def forget(self, key: K) -> None:
        """Reset the backoff of a key after a success."""
        self._failures.pop(key, None)
        self._backoff_ends.pop(key, None)
        self._held_until.pop(key, None)
