"""Tests of the fair semaphore: groups take turns, and no slot is lost."""

import asyncio
import contextlib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ddp_operator.cluster.kube.fair_semaphore import FairSemaphore
from tests.operator.fake_time import run_in_fake_time


def test_waiters_of_a_large_group_delay_another_group_by_one_holder() -> None:
    served: list[str] = []

    async def request(slots: FairSemaphore, group: str) -> None:
        async with slots.hold(group):
            await asyncio.sleep(1)
        served.append(group)

    async def body() -> None:
        slots = FairSemaphore(2)
        large = [asyncio.ensure_future(request(slots, "large")) for _ in range(1000)]
        await asyncio.sleep(0.5)
        await request(slots, "small")
        for one in large:
            one.cancel()
        await asyncio.gather(*large, return_exceptions=True)

    run_in_fake_time(body())
    assert len(served) <= 4


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5)), max_size=30), st.data())
def test_no_slot_of_the_semaphore_is_lost_when_waiters_are_cancelled(
    requests: list[tuple[str, int]], data: st.DataObject
) -> None:
    holders = 0

    async def request(slots: FairSemaphore, group: str, seconds: int) -> None:
        nonlocal holders
        async with slots.hold(group):
            holders += 1
            assert holders <= 2
            try:
                await asyncio.sleep(seconds)
            finally:
                holders -= 1

    async def body() -> None:
        slots = FairSemaphore(2)
        running: list[asyncio.Task[Any]] = [
            asyncio.ensure_future(request(slots, group, seconds)) for group, seconds in requests
        ]
        for one in running:
            if data.draw(st.booleans()):
                await asyncio.sleep(data.draw(st.sampled_from([0, 0.5, 1])))
                one.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        async with asyncio.timeout(1), contextlib.AsyncExitStack() as stack:
            for _ in range(2):
                await stack.enter_async_context(slots.hold("last"))

    run_in_fake_time(body())
