"""Asking an agent over real HTTP: a whole status or nothing, in time, whatever answers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest

from ddp_agent.server import AgentServer
from ddp_agent.word import Word
from ddp_operator.cluster import agents as agents_module
from ddp_operator.cluster.agents import Agents
from ddp_wire.contract import AgentPhase, AgentStatus, AttemptOrder
from tests.agent.support import Told, beat
from tests.operator.support import UID, word

SAID = word(1, attempt=3, ranks=[beat(local_rank=i, rank=i) for i in range(64)])
BODY = SAID.to_json().encode()

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


def head(status: str = "200 OK", *, length: int = len(BODY), more: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{more}\r\n".encode()


@asynccontextmanager
async def answering(answer: Answer) -> AsyncIterator[int]:
    """A server that answers each connection as it is told; gives its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await answer(writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@asynccontextmanager
async def agents_at(port: int) -> AsyncIterator[Agents]:
    agents = Agents(port)
    try:
        yield agents
    finally:
        await agents.close()


async def ask(port: int) -> AgentStatus | None:
    async with agents_at(port) as agents:
        return await agents.ask("127.0.0.1")


async def test_the_agents_own_server_is_understood() -> None:
    agent = Told()
    agent.word = Word(SAID)
    server = AgentServer("127.0.0.1", 0, agent)
    server.start()
    try:
        async with agents_at(server.port) as agents:
            assert await agents.ask("127.0.0.1") == SAID
            assert await agents.news("127.0.0.1", -1) == SAID
            news = asyncio.ensure_future(agents.news("127.0.0.1", SAID.revision))
            agent.word.enter(AgentPhase.FAILED, 5.0)
            heard = await news
            assert heard is not None
            assert heard.phase is AgentPhase.FAILED
            order = AttemptOrder(job_uid=UID, attempt=4)
            assert await agents.order("127.0.0.1", order)
            assert not await agents.order("127.0.0.1", AttemptOrder(job_uid="other", attempt=4))
            assert agent.orders[0] == order
    finally:
        await asyncio.to_thread(server.close)


async def test_an_order_that_nobody_takes_is_no_error() -> None:
    async with agents_at(1) as agents:
        assert not await agents.order("127.0.0.1", AttemptOrder(job_uid=UID, attempt=4))


async def test_an_answer_that_comes_in_pieces_is_read_to_its_end() -> None:
    """As over a network, where a status of many ranks does not fit one packet."""

    async def in_pieces(writer: asyncio.StreamWriter) -> None:
        writer.write(head())
        for start in range(0, len(BODY), 1400):
            writer.write(BODY[start : start + 1400])
            await writer.drain()
            await asyncio.sleep(0.002)

    async with answering(in_pieces) as port:
        assert await ask(port) == SAID


@pytest.mark.parametrize(
    "answer",
    [
        head("503 Service Unavailable") + BODY,
        head("302 Found", length=0, more="Location: http://127.0.0.1:1/\r\n"),
        head(length=5) + b"hello",
        head(length=2) + b"[]",
        head() + BODY[:50],
        b"nonsense\r\n\r\n",
        b"",
    ],
    ids=["an error", "a redirect", "no JSON", "no status", "cut off", "no HTTP", "nothing"],
)
async def test_what_is_no_status_counts_as_no_answer(answer: bytes) -> None:
    async def say(writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await writer.drain()

    async with answering(say) as port:
        assert await ask(port) is None


async def test_an_answer_without_end_is_not_read_without_end() -> None:
    sent = 0

    async def talk(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while not writer.is_closing() and sent < 1 << 28:
            writer.write(b" " * 65536)
            sent += 65536
            await writer.drain()

    async with answering(talk) as port:
        assert await ask(port) is None
    assert sent < 1 << 26


async def test_an_agent_that_does_not_answer_in_time_gives_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agents_module, "_SHORT", aiohttp.ClientTimeout(total=0.1))
    asked = asyncio.Event()

    async def wait(_: asyncio.StreamWriter) -> None:
        asked.set()
        await asyncio.sleep(5)

    async with answering(wait) as port:
        assert await ask(port) is None
        assert asked.is_set()


async def test_one_that_let_a_question_run_out_is_waited_for_once_until_it_is_heard_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agents_module, "_SHORT", aiohttp.ClientTimeout(total=0.1))
    asked = 0
    back = asyncio.Event()

    async def answer(writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        if back.is_set():
            writer.write(head() + BODY)
            await writer.drain()
        else:
            await asyncio.sleep(5)

    async with answering(answer) as port, agents_at(port) as agents:
        assert await agents.ask("127.0.0.1", insist=False) is None
        assert await agents.ask("127.0.0.1", insist=False) is None
        assert asked == 1
        assert await agents.ask("127.0.0.1") is None
        assert asked == 2
        back.set()
        assert await agents.news("127.0.0.1", -1) == SAID
        assert await agents.ask("127.0.0.1", insist=False) == SAID


async def test_one_that_refuses_is_asked_each_time_for_it_may_be_starting() -> None:
    agent = Told()
    agent.word = Word(SAID)
    server = AgentServer("127.0.0.1", 0, agent)
    server.start()
    port = server.port
    await asyncio.to_thread(server.close)
    async with agents_at(port) as agents:
        assert await agents.ask("127.0.0.1", insist=False) is None
        again = AgentServer("127.0.0.1", port, agent)
        again.start()
        try:
            assert await agents.ask("127.0.0.1", insist=False) == SAID
        finally:
            await asyncio.to_thread(again.close)


async def test_nobody_there_gives_no_answer() -> None:
    assert await ask(1) is None
