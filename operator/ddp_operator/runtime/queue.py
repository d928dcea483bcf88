"""A work queue of keys: each at most once in it, and at most one worker on each."""

import asyncio
import random
from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class WorkQueue(Generic[K]):
    """Deduplicated keys with delays and per-key exponential backoff.

    A key that is added while a worker is on it is handed out again afterwards, so that no change
    is missed and no two workers ever act on one key. Semantics of client-go's workqueue.
    """

    def __init__(self, *, base: float = 0.2, cap: float = 60.0, seed: int | None = None) -> None:
        """Backoff begins at `base` seconds, doubles up to `cap`, and is spread by up to half."""
        self._base, self._cap = base, cap
        self._random = random.Random(seed)  # noqa: S311 (jitter)
        self._ready: deque[K] = deque()
        self._waiting: set[K] = set()
        self._active: set[K] = set()
        self._again: set[K] = set()
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}
        self._held: dict[K, float] = {}
        self._wakeup = asyncio.Event()

    def __len__(self) -> int:
        return len(self._ready)

    @property
    def active(self) -> frozenset[K]:
        """Keys that workers are on."""
        return frozenset(self._active)

    def add(self, key: K) -> None:
        """Hand the key out as soon as a worker is free, and the key is not held back."""
        rest = self._held.get(key, 0.0) - asyncio.get_running_loop().time() if self._held else 0.0
        if rest > 0.0:
            self.add_after(key, rest)
        elif key in self._active:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.append(key)
            self._wakeup.set()

    def add_after(self, key: K, seconds: float) -> None:
        """Hand the key out after a time. An earlier date that is set already stands."""
        loop = asyncio.get_running_loop()
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= loop.time() + seconds:
                return
            timer.cancel()
        self._timers[key] = loop.call_later(seconds, self._due, key)

    def _due(self, key: K) -> None:
        self._timers.pop(key, None)
        self.add(key)

    async def get(self) -> K:
        """The next key. The worker must call `done` with it."""
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
        """The worker is off the key."""
        self._active.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def retry(self, key: K, at_least: float | None = None) -> float:
        """Hand the key out again after its backoff. Returns the seconds.

        `at_least` holds the key back for a time in which nothing hands it out: the server asked
        for it, and a change of the job is no reason to ask the server sooner.
        """
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay = min(self._cap, self._base * 2.0 ** min(failures, 30))
        delay *= self._random.uniform(0.5, 1.0)
        if at_least:
            delay = max(delay, at_least)
            self._held[key] = asyncio.get_running_loop().time() + at_least
        self.add_after(key, delay)
        return delay

    def forget(self, key: K) -> None:
        """The key went well: its next backoff begins anew."""
        self._failures.pop(key, None)
        self._held.pop(key, None)
