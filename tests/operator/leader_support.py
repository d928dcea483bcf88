"""Simulated processes for the tests of leader election."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from ddp_operator.cluster.base import NotLeadingError
from ddp_operator.runtime.leader import Elector, Timing
from tests.operator.fake_leases import Connection, LeaseServer

LEASE, RENEW, RETRY = 15.0, 10.0, 2.0
STEP = 1.2 * RETRY
"""Longest time between two reads of the Lease by a candidate, in seconds."""


class Candidate:
    """Process that acquires the Lease, holds it, and ends when it loses it."""

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
        self.task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        try:
            if not await self.elector.acquire(self.stop):
                return
            self.led_at = now()
            holding = asyncio.ensure_future(self.elector.hold())
            stopped = asyncio.ensure_future(self.stop.wait())
            try:
                await asyncio.wait([holding, stopped], return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                holding.cancel()  # A killed process renews nothing.
                raise
            finally:
                stopped.cancel()
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
        """Stop the process as SIGKILL does, without a release."""
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task
        self.elector._leads_until = None


def now() -> float:
    return asyncio.get_running_loop().time()


def pause(seconds: float) -> None:
    """Advance the time while no task runs, as during SIGSTOP."""
    loop: Any = asyncio.get_running_loop()
    loop._virtual.now += seconds


@contextlib.asynccontextmanager
async def candidates(server: LeaseServer, *names: str) -> AsyncIterator[list[Candidate]]:
    """Start candidates one after another, so that the first one leads."""
    found = []
    for name in names:
        found.append(Candidate(server, name))
        await asyncio.sleep(0.1)
    yield found
    for candidate in found:
        await candidate.kill()


async def until_leads(candidate: Candidate, limit: float = 60.0) -> float:
    async with asyncio.timeout(limit):
        while not candidate.elector.leads:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return now()
