"""Work queue: urgent keys first, and turns of the groups."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from ddp_operator.runtime.queue import WorkQueue
from tests.operator.fake_time import run_in_fake_time
from tests.operator.runtime.test_queue import arrival, in_fake_time


def test_urgent_key_overtakes_the_others() -> None:
    async def body(queue: WorkQueue[str]) -> None:
        for key in "abc":
            queue.add(key)
        queue.add("c", urgent=True)
        queue.add("d", urgent=True)
        assert len(queue) == 4
        assert [await queue.get() for _ in range(4)] == ["c", "d", "a", "b"]
        assert len(queue) == 0
        queue.done("c")
        queue.add("c")
        assert await arrival(queue) == ("c", 0.0)

    in_fake_time(body)


def test_keys_that_are_not_urgent_are_not_starved() -> None:
    async def body(queue: WorkQueue[str]) -> None:
        queue.add("quiet")
        for number in range(40):
            queue.add(f"urgent-{number}", urgent=True)
        order = [await queue.get() for _ in range(41)]
        assert order.index("quiet") == 16

    in_fake_time(body)


def test_urgent_change_of_an_active_key_is_not_forgotten() -> None:
    async def body(queue: WorkQueue[str]) -> None:
        queue.add("a")
        await queue.get()
        queue.add("a", urgent=True)
        queue.add("a")
        queue.add("b")
        queue.done("a")
        assert await queue.get() == "a"

    in_fake_time(body)


def test_worker_for_urgent_keys_leaves_all_other_keys() -> None:
    async def body(queue: WorkQueue[str]) -> None:
        queue.add("new")
        urgent = asyncio.ensure_future(queue.get(urgent=True))
        await asyncio.sleep(1.0)
        assert not urgent.done()
        queue.add("new-too")
        queue.add("running", urgent=True)
        assert await urgent == "running"
        assert [await queue.get(), await queue.get()] == ["new", "new-too"]

    in_fake_time(body)


def test_worker_for_urgent_keys_skips_groups_without_them() -> None:
    async def body() -> None:
        queue: WorkQueue[tuple[str, int]] = WorkQueue(group_of=lambda key: key[0])
        queue.add(("crowd", 0))
        queue.add(("other", 0), urgent=True)
        assert await queue.get(urgent=True) == ("other", 0)
        assert await queue.get() == ("crowd", 0)

    run_in_fake_time(body())


def test_urgent_change_during_a_pause_overtakes_when_the_pause_ends() -> None:
    async def body(queue: WorkQueue[str]) -> None:
        queue.add("a")
        await queue.get()
        queue.add("a", urgent=True)
        queue.pause("a", 1.0)
        queue.done("a")
        queue.add("a", urgent=True)
        await asyncio.sleep(0.5)
        for key in "bcd":
            queue.add(key)
        await asyncio.sleep(1.0)
        assert await queue.get() == "a"

    in_fake_time(body)


def test_delayed_job_that_is_due_overtakes_keys_that_are_not_urgent() -> None:
    async def body(queue: WorkQueue[str]) -> None:
        queue.retry("failed")
        queue.add_after("due", 1.0)
        for key in "bcd":
            queue.add(key)
        await asyncio.sleep(2.0)
        assert {await queue.get(), await queue.get()} == {"failed", "due"}

    in_fake_time(body)


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.booleans()), max_size=40))
def test_every_added_key_is_handed_out_once(added: list[tuple[str, bool]]) -> None:
    async def body(queue: WorkQueue[str]) -> None:
        for key, urgent in added:
            queue.add(key, urgent=urgent)
        urgent_keys = {key for key, urgent in added if urgent}
        found = [await queue.get(urgent=True) for _ in urgent_keys]
        assert set(found) == urgent_keys
        found += [await queue.get() for _ in range(len(queue))]
        assert sorted(found) == sorted({key for key, _ in added})
        assert len(queue) == 0

    in_fake_time(body)


def test_groups_take_turns() -> None:
    async def body() -> None:
        queue: WorkQueue[tuple[str, int]] = WorkQueue(group_of=lambda key: key[0])
        for number in range(100):
            queue.add(("crowd", number), urgent=True)
        queue.add(("quiet", 0))
        assert [await queue.get() for _ in range(3)] == [("crowd", 0), ("quiet", 0), ("crowd", 1)]
        queue.add(("other", 0))
        assert [await queue.get() for _ in range(2)] == [("crowd", 2), ("other", 0)]
        assert len(queue) == 97

    run_in_fake_time(body())
