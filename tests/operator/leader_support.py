"""Candidates for the leadership, as processes: for the tests of the election."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from ddp_operator.cluster.base import NotLeadingError
from ddp_operator.runtime.leader import Elector, Timing
from tests.operator.fake_leases import Connection, LeaseServer

LEASE, RENEW, RETRY = 15.0, 10.0, 2.0
STEP = 1.2 * RETRY
"""The longest time between two looks of a candidate."""


class Candidate:
    """A process: it acquires, holds, and ends when it loses."""

    def __init__(self, server: LeaseServer, identity: str) -> None:
        self.connection = Connection(server)
        self.elector = Elector(
            self.connection,
            "ddp-system",
            "ddp-trainer-operator",
            identity,
            Timing(LEASE, RENEW, RETRY),
        )
        self.stop = asyncio.Event()
        self.led_at: float | None = None
        self.ended_at: float | None = None
        self.lost = ""
        self.task = asyncio.ensure_future(self._live())

    async def _live(self) -> None:
        try:
            if not await self.elector.acquire(self.stop):
                return
            self.led_at = now()
            holding = asyncio.ensure_future(self.elector.hold())
            asked = asyncio.ensure_future(self.stop.wait())
            await asyncio.wait([holding, asked], return_when=asyncio.FIRST_COMPLETED)
            asked.cancel()
            if holding.done():
                self.lost = str(holding.exception())
                assert isinstance(holding.exception(), NotLeadingError)
                return
            holding.cancel()
            await asyncio.gather(holding, return_exceptions=True)
            await self.elector.release()
        finally:
            self.ended_at = now()

    async def kill(self) -> None:
        """SIGKILL: nothing is released."""
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task
        self.elector._leads_until = None


def now() -> float:
    return asyncio.get_running_loop().time()


def pause(seconds: float) -> None:
    """Time passes and nothing of this process runs."""
    loop: Any = asyncio.get_running_loop()
    loop._jumps.now += seconds


@contextlib.asynccontextmanager
async def candidates(server: LeaseServer, *names: str) -> AsyncIterator[list[Candidate]]:
    """Candidates that begin one after the other, so that the first leads."""
    found = []
    for name in names:
        found.append(Candidate(server, name))
        await asyncio.sleep(0.1)
    yield found
    for one in found:
        await one.kill()


async def until_leads(candidate: Candidate, limit: float = 60.0) -> float:
    async with asyncio.timeout(limit):
        while not candidate.elector.leads:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return now()
