"""Semaphore that serves groups of waiters in turn."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager


class FairSemaphore:
    """Semaphore that gives each free slot to the next waiting group in turn.

    So a group with a thousand waiters delays a waiter of another group by one slot, not by a
    thousand.
    """

    def __init__(self, places: int) -> None:
        """Create a semaphore with the given number of slots, at least 1."""
        self._free = places
        self._waiting: dict[Hashable, deque[asyncio.Future[None]]] = {}
        """Waiters by group. The group at the front is served next."""

    @asynccontextmanager
    async def hold(self, group: Hashable) -> AsyncIterator[None]:
        """Hold a slot as a member of a group until the context ends."""
        await self._acquire(group)
        try:
            yield
        finally:
            self._release()

    async def _acquire(self, group: Hashable) -> None:
        if self._free > 0:
            self._free -= 1
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(group, deque()).append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._release()  # This waiter got a place and will not use it.
            raise

    def _release(self) -> None:
        while self._waiting:
            group = next(iter(self._waiting))
            waiters = self._waiting.pop(group)
            place = waiters.popleft()
            if waiters:
                self._waiting[group] = waiters  # At the end: the other groups come first.
            if not place.done():
                place.set_result(None)
                return
        self._free += 1
