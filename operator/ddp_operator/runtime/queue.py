"""Work queue of keys with deduplication, delays and backoff."""

import asyncio
import random
from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
_LONGEST_HOLD_SECONDS = 1.0
"""Longest time after a failure in which an event does not hand out the key early."""

_TIMER_SECONDS = 0.001
"""Time by which a timer may fire early."""


class WorkQueue(Generic[K]):
    """Deduplicated keys with delays and per-key exponential backoff.

    A key that is added while a worker processes it is handed out again afterwards. So no change is
    missed, and two workers never process the same key. The semantics are those of client-go's
    workqueue.
    """

    def __init__(self, *, base: float = 0.2, cap: float = 60.0, seed: int | None = None) -> None:
        """Create an empty queue.

        The backoff doubles from `base` to `cap` seconds. Jitter shortens it by up to half.
        """
        self._base, self._cap = base, cap
        self._random = random.Random(seed)  # noqa: S311 (jitter)
        self._ready: deque[K] = deque()
        self._waiting: set[K] = set()
        self._active: set[K] = set()
        self._added_while_active: set[K] = set()
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}
        self._held_until: dict[K, float] = {}
        """Loop time before which a failed key is not handed out, not even after an event."""
        self._backoff_ends: dict[K, float] = {}
        """Loop time at which the backoff of a failed key ends."""
        self._wakeup = asyncio.Event()

    def __len__(self) -> int:
        return len(self._ready)

    @property
    def active(self) -> frozenset[K]:
        """Return the keys that workers process now."""
        return frozenset(self._active)

    def add(self, key: K) -> None:
        """Add a key for the next free worker, or once `retry` no longer holds it back."""
        remaining = (
            self._held_until.get(key, 0.0) - asyncio.get_running_loop().time()
            if self._held_until
            else 0.0
        )
        if remaining > 0.0:
            self.add_after(key, remaining)
        elif key in self._active:
            self._added_while_active.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.append(key)
            self._wakeup.set()

    def add_after(self, key: K, seconds: float) -> None:
        """Add a key after a delay in seconds. An earlier delay that is already set stays."""
        loop = asyncio.get_running_loop()
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= loop.time() + seconds:
                return
            timer.cancel()
        self._timers[key] = loop.call_later(seconds, self._expire, key)

    def _expire(self, key: K) -> None:
        self._timers.pop(key, None)
        self.add(key)

    async def get(self) -> K:
        """Wait for the next key and return it. The worker must call `done` with it."""
        while not self._ready:
            self._wakeup.clear()
            await self._wakeup.wait()
        key = self._ready.popleft()
        self._waiting.discard(key)
        self._active.add(key)
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        return key

    def done(self, key: K) -> None:
        """Mark a key as processed. Hand it out again if it was added meanwhile."""
        self._active.discard(key)
        if key in self._added_while_active:
            self._added_while_active.discard(key)
            self.add(key)

    def retry(self, key: K, at_least: float | None = None) -> float:
        """Add a failed key again after its backoff.

        An event may hand out the key before its backoff ends, at most once per second. Such an
        early failure neither doubles the backoff nor moves its end.

        Args:
            key: The key.
            at_least: Seconds for which the key is held back, even if it is added again. This is
                the server's Retry-After, and a change of the job does not shorten it.

        Returns:
            Seconds until the key is handed out.
        """
        now = asyncio.get_running_loop().time()
        delay = self._backoff_ends.get(key, 0.0) - now
        if delay <= _TIMER_SECONDS:
            failures = self._failures.get(key, 0)
            self._failures[key] = failures + 1
            delay = min(self._cap, self._base * 2.0 ** min(failures, 30))
            delay *= self._random.uniform(0.5, 1.0)
            self._backoff_ends[key] = now + delay
        hold = min(delay, max(self._base, min(delay / 8.0, _LONGEST_HOLD_SECONDS)))
        self._held_until[key] = now + max(hold, at_least or 0.0)
        delay = max(delay, at_least or 0.0)
        self.add_after(key, delay)
        return delay

    def pause(self, key: K, seconds: float) -> None:
        """Hold a key back for this many seconds. Changes until then are handed out together."""
        if seconds > 0.0:
            until = asyncio.get_running_loop().time() + seconds
            self._held_until[key] = max(until, self._held_until.get(key, 0.0))

    def forget(self, key: K) -> None:
        """Reset the backoff of a key that was processed without an error."""
        self._failures.pop(key, None)
        self._backoff_ends.pop(key, None)
        self._held_until.pop(key, None)
