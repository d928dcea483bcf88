"""Work queue: deduplication, one worker per key, delays and backoff."""

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_operator.limits import Backoff
from ddp_operator.runtime.queue import WorkQueue
from tests.operator.fake_time import run_in_fake_time

Test = Callable[[WorkQueue[str]], Awaitable[None]]


def in_fake_time(test: Test, *, base: float = 1.0, cap: float = 60.0) -> None:
    async def body() -> None:
        await test(WorkQueue(backoff=Backoff(base, cap), seed=1))

    run_in_fake_time(body())


async def arrival(queue: WorkQueue[str]) -> tuple[str, float]:
    """Return the next key and its time in seconds, rounded to milliseconds."""
    key = await queue.get()
    return key, round(asyncio.get_running_loop().time(), 3)


def test_key_added_twice_is_handed_out_once() -> None:
    async def body(queue: WorkQueue[str]) -> None:
        queue.add("a")
        queue.add("b")
        queue.add("a")
        assert [await queue.get(), await queue.get()] == ["a", "b"]
        assert len(queue) == 0

    in_fake_time(body)


def test_oldest_waiting_key_is_the_first_key_that_no_worker_has_taken() -> None:
    async def body(queue: WorkQueue[str]) -> None:
        assert queue.oldest_seconds() == 0.0
        queue.add("a")
        assert queue.oldest_seconds() > 0.0
        await queue.get()
        assert queue.oldest_seconds() == 0.0

    in_fake_time(body)


def test_key_added_while_active_is_handed_out_again_after_done() -> None:
    async def body(queue: WorkQueue[str]) -> None:
        queue.add("a")
        await queue.get()
        queue.add("a")
        queue.add("a")
        assert len(queue) == 0
        assert set(queue.active) == {"a"}
        queue.done("a")
        assert await queue.get() == "a"
        queue.done("a")
        assert len(queue) == 0

    in_fake_time(body)


def test_waiting_worker_is_woken_by_the_next_key() -> None:
    async def body(queue: WorkQueue[str]) -> None:
        waiting = [asyncio.ensure_future(queue.get()) for _ in range(2)]
        await asyncio.sleep(1)
        queue.add("a")
        await asyncio.sleep(1)
        queue.add("b")
        assert sorted(await asyncio.gather(*waiting)) == ["a", "b"]

    in_fake_time(body)


def test_delayed_key_is_handed_out_after_its_delay() -> None:
    async def body(queue: WorkQueue[str]) -> None:
        queue.add_after("a", 7)
        assert await arrival(queue) == ("a", 7)

    in_fake_time(body)


@pytest.mark.parametrize("delays", [(3, 9), (9, 3)], ids=["earlier first", "earlier last"])
def test_earlier_of_two_delays_wins(delays: tuple[float, float]) -> None:
    async def body(queue: WorkQueue[str]) -> None:
        for delay in delays:
            queue.add_after("a", delay)
        assert await arrival(queue) == ("a", 3)
        queue.done("a")
        await asyncio.sleep(20)
        assert len(queue) == 0, "the later delay must be dropped"

    in_fake_time(body)


def test_key_handed_out_early_is_not_handed_out_at_its_old_time() -> None:
    async def body(queue: WorkQueue[str]) -> None:
        queue.add_after("a", 5)
        queue.add("a")
        assert await arrival(queue) == ("a", 0)
        queue.done("a")
        await asyncio.sleep(20)
        assert len(queue) == 0

    in_fake_time(body)


def test_delay_that_ends_while_the_key_is_active_is_not_lost() -> None:
    async def body(queue: WorkQueue[str]) -> None:
        queue.add("a")
        await queue.get()
        queue.add_after("a", 1)
        await asyncio.sleep(2)
        assert len(queue) == 0
        queue.done("a")
        assert await queue.get() == "a"

    in_fake_time(body)


def test_backoff_doubles_up_to_its_cap() -> None:
    async def body(queue: WorkQueue[str]) -> None:
        for failures in range(40):
            delay = queue.retry("a")
            await queue.get()
            queue.done("a")
            full = min(60.0, 2.0**failures)
            assert full / 2 <= delay <= full

    in_fake_time(body)


def test_refused_job_tries_at_most_8_creations_in_30_seconds_with_any_jitter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One creation follows each backoff, however short jitter makes the backoff."""
    monkeypatch.setattr(random.Random, "uniform", lambda _, low, _high: low)

    async def body(queue: WorkQueue[str]) -> None:
        passed = 0.0
        for _ in range(8):
            passed += queue.retry("a")
            await queue.get()
            queue.done("a")
        assert passed > 30.0, "a ninth creation comes later"

    in_fake_time(body, base=0.2)


def test_failed_key_is_handed_out_after_its_backoff() -> None:
    async def body(queue: WorkQueue[str]) -> None:
        delay = queue.retry("a")
        assert await arrival(queue) == ("a", round(delay, 3))

    in_fake_time(body)


def test_backoff_has_jitter_so_that_keys_spread_out() -> None:
    async def body(queue: WorkQueue[str]) -> None:
        assert len({queue.retry(f"key-{i}") for i in range(20)}) == 20

    in_fake_time(body)


def test_delay_requested_by_the_server_can_exceed_the_backoff() -> None:
    async def body(queue: WorkQueue[str]) -> None:
        assert queue.retry("a", 30) == 30
        assert queue.retry("b", 0.001) >= 0.5

    in_fake_time(body)


def test_key_with_a_delay_from_the_server_is_not_handed_out_after_a_change() -> None:
    async def body(queue: WorkQueue[str]) -> None:
        queue.add("a")
        await queue.get()
        queue.add("a")
        queue.retry("a", at_least=30.0)
        queue.done("a")
        queue.add("a")
        queue.add("b")
        assert await arrival(queue) == ("b", 0.0)
        assert await arrival(queue) == ("a", 30.0)
        queue.forget("a")
        queue.done("a")
        queue.add("a")
        assert await arrival(queue) == ("a", 30.0)

    in_fake_time(body)


async def fail(queue: WorkQueue[str], times: int) -> float:
    """Let a key fail several times, each time after its backoff. Return the last delay."""
    delay = queue.retry("a")
    for _ in range(times - 1):
        await queue.get()
        delay = queue.retry("a")
        queue.done("a")
    return delay


def test_wake_ups_within_a_backoff_do_not_lengthen_it() -> None:
    async def body(queue: WorkQueue[str]) -> None:
        loop = asyncio.get_running_loop()
        delay = await fail(queue, 5)
        assert delay >= 8, "the backoff must be long enough for several wake-ups"
        end = loop.time() + delay
        while loop.time() < end - 1:
            queue.add("a")
            await queue.get()
            delay = queue.retry("a")
            assert loop.time() + delay == pytest.approx(end)
            queue.done("a")
        assert await arrival(queue) == ("a", round(end, 3))
        assert 16 <= queue.retry("a") <= 32

    in_fake_time(body)


def test_wake_ups_within_a_backoff_do_not_cause_a_busy_loop() -> None:
    async def body(queue: WorkQueue[str]) -> None:
        loop = asyncio.get_running_loop()
        await fail(queue, 5)
        start, tries = loop.time(), 0
        while loop.time() < start + 5:
            queue.add("a")
            if len(queue):
                await queue.get()
                queue.retry("a")
                queue.done("a")
                tries += 1
            await asyncio.sleep(0.001)
        assert 4 <= tries <= 6

    in_fake_time(body)


def test_wake_ups_hand_out_a_failed_key_at_most_once_per_second() -> None:
    """Backoffs of up to a second are never cut short."""

    async def body(queue: WorkQueue[str]) -> None:
        loop = asyncio.get_running_loop()
        tries, delays = [loop.time()], [queue.retry("a")]
        while loop.time() < 10:
            queue.add("a")
            if len(queue):
                await queue.get()
                tries.append(loop.time())
                delays.append(queue.retry("a"))
                queue.done("a")
            await asyncio.sleep(0.001)
        gaps = [later - earlier for earlier, later in itertools.pairwise(tries)]
        too_early = [
            (gap, delay)
            for gap, delay in zip(gaps, delays, strict=False)
            if gap < min(delay, 1.0) - 0.002
        ]
        assert not too_early
        assert len(tries) >= 8

    in_fake_time(body, base=0.2)


def test_event_long_after_the_failure_is_handed_out_at_once() -> None:
    async def body(queue: WorkQueue[str]) -> None:
        await fail(queue, 5)
        await asyncio.sleep(1)
        now = asyncio.get_running_loop().time()
        queue.add("a")
        assert await arrival(queue) == ("a", round(now, 3))

    in_fake_time(body)


def test_backoff_is_reset_after_a_success() -> None:
    async def body(queue: WorkQueue[str]) -> None:
        for _ in range(5):
            queue.retry("a")
        queue.forget("a")
        assert queue.retry("a") <= 1.0
        assert queue.retry("b") <= 1.0

    in_fake_time(body)


def test_failure_of_one_key_does_not_delay_others() -> None:
    async def body(queue: WorkQueue[str]) -> None:
        for _ in range(5):
            queue.retry("a")
        queue.add("b")
        assert await arrival(queue) == ("b", 0)

    in_fake_time(body)


class Workers:
    """Workers on a queue, and the pending keys: added and not handed out since."""

    def __init__(self, queue: WorkQueue[str]) -> None:
        self.queue = queue
        self.active: list[str] = []
        self.pending: set[str] = set()

    async def add(self, key: str) -> None:
        self.queue.add(key)
        self.pending.add(key)

    async def later(self, key: str) -> None:
        self.queue.add_after(key, 1)
        self.pending.add(key)

    async def wait(self, _: str) -> None:
        await asyncio.sleep(2)

    async def get(self, _: str) -> None:
        if len(self.queue):
            got = await self.queue.get()
            assert got not in self.active
            self.active.append(got)
            self.pending.discard(got)

    async def done(self, _: str) -> None:
        if self.active:
            self.queue.done(self.active.pop())


STEPS = st.lists(
    st.tuples(
        st.sampled_from([Workers.add, Workers.later, Workers.wait, Workers.get, Workers.done]),
        st.sampled_from("ab"),
    ),
    max_size=40,
)


@given(STEPS)
def test_no_key_is_active_twice_and_no_change_is_missed(steps: list[Any]) -> None:
    async def body(queue: WorkQueue[str]) -> None:
        workers = Workers(queue)
        for step, key in steps:
            await step(workers, key)
        while workers.active:
            await workers.done("")
        await asyncio.sleep(5)
        while len(queue):
            await workers.get("")
            await workers.done("")
        assert workers.pending == set()

    in_fake_time(body)


def test_pause_collects_the_events_until_its_end() -> None:
    async def body(queue: WorkQueue[str]) -> None:
        queue.add("a")
        await queue.get()
        queue.add("a")
        queue.pause("a", 3.0)
        queue.done("a")
        await asyncio.sleep(1.0)
        queue.add("a")
        queue.add("b")
        assert await arrival(queue) == ("b", 1.0)
        assert await arrival(queue) == ("a", 3.0)
        queue.done("a")
        assert len(queue) == 0

    in_fake_time(body)


def test_key_without_a_pause_is_handed_out_at_once() -> None:
    async def body(queue: WorkQueue[str]) -> None:
        queue.pause("a", 0.0)
        queue.add("a")
        assert await arrival(queue) == ("a", 0.0)

    in_fake_time(body)
