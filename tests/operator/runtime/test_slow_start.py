"""Tests of the slow start of many requests."""

import asyncio
from functools import partial

import pytest

from ddp_operator.runtime.slow_start import slow_start


class Server:
    """Server that answers on the test's request, and refuses requests above a quota."""

    def __init__(self, quota: int = 1_000_000) -> None:
        self.open: list[tuple[int, asyncio.Future[None]]] = []
        self.seen: list[int] = []
        self.most_open = 0
        self._quota = quota

    async def request(self, number: int) -> None:
        answer = asyncio.get_running_loop().create_future()
        self.seen.append(number)
        self.open.append((number, answer))
        self.most_open = max(self.most_open, len(self.open))
        await answer

    async def answer(self, number: int | None = None) -> None:
        """Answer one open request, by default the oldest, and let the client send others."""
        index = [each for each, _ in self.open].index(number) if number is not None else 0
        number, future = self.open.pop(index)
        if number < self._quota:
            future.set_result(None)
        else:
            future.set_exception(ValueError(f"no room for {number}"))
        await settle()


async def settle() -> None:
    """Let all tasks run until they wait."""
    for _ in range(5):
        await asyncio.sleep(0)


async def start(server: Server, count: int, most: int = 8) -> "asyncio.Task[int]":
    """Start to send requests, and wait until the first requests are open."""
    requests = [partial(server.request, number) for number in range(count)]
    task = asyncio.create_task(slow_start(requests, first=2, most=lambda: most))
    await settle()
    return task


async def test_each_success_permits_one_more_open_request_up_to_the_limit() -> None:
    server = Server()
    task = await start(server, 40)
    counts = []
    while not task.done():
        counts.append(len(server.open))
        await server.answer()
    assert counts[:8] == [2, 3, 4, 5, 6, 7, 8, 8]
    assert server.most_open == 8
    assert server.seen == list(range(40))


async def test_limit_on_open_requests_holds_from_the_first_request() -> None:
    server = Server()
    task = await start(server, 5, most=1)
    while not task.done():
        await server.answer()
    assert server.most_open == 1


async def test_slow_answer_does_not_delay_the_other_requests() -> None:
    server = Server()
    task = await start(server, 40)
    while len(server.seen) < 40:
        await server.answer(server.open[-1][0])
    assert 0 in [number for number, _ in server.open]
    while not task.done():
        await server.answer()


@pytest.mark.parametrize(("quota", "refused"), [(0, 2), (1, 3), (30, 8)])
async def test_refused_request_ends_the_sending_after_a_few_more(quota: int, refused: int) -> None:
    server = Server(quota)
    task = await start(server, 1000)
    while not task.done():
        await server.answer()
    with pytest.raises(ValueError, match=f"no room for {quota}$"):
        await task
    assert len(server.seen) == quota + refused


async def test_cancellation_cancels_all_open_requests() -> None:
    server = Server()
    task = await start(server, 40)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0)
    assert all(answer.cancelled() for _, answer in server.open)


async def test_slow_start_of_an_empty_list_sends_nothing() -> None:
    assert await slow_start([], first=2, most=lambda: 8) == 0


async def test_no_request_is_sent_once_sending_must_stop() -> None:
    server, ended = Server(), False
    requests = [partial(server.request, number) for number in range(10)]
    sending = slow_start(requests, first=2, most=lambda: 8, ends=lambda: ended)
    task = asyncio.create_task(sending)
    await settle()
    await server.answer()
    ended = True
    while not task.done():
        await server.answer()
    assert server.seen == [0, 1, 2, 3]
    assert task.result() == 6
