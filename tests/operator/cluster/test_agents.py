"""Agent client over real HTTP: it returns a valid status in time, or None."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from ddp_operator.cluster import agents as agents_module
from ddp_operator.cluster.agent_http import Response
from ddp_operator.cluster.agents import Agents
from ddp_wire.messages import AgentPhase, AgentStatus, AttemptOrder, InspectionRequest
from ddp_wire.signatures import SIGNATURE_HEADER, random_text, sign_answer
from tests.agent.support import FakeAgent, heartbeat, wait_until
from tests.operator.support import UID, agent_status

STATUS = agent_status(1, attempt=3, ranks=[heartbeat(local_rank=i, rank=i) for i in range(64)])
KEPT = STATUS.model_copy(update={"command": [], "ranks": STATUS.ranks[:1]})
"""The part of a status that the operator keeps."""
BODY = STATUS.to_json().encode()

SECRET = random_text()
Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


def head(status: str = "200 OK", *, length: int = len(BODY), more: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{more}\r\n".encode()


@asynccontextmanager
async def answering(answer: Answer) -> AsyncIterator[int]:
    """Serve each connection with `answer`. Yield the port."""

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


async def get_status(port: int, secret: str = "") -> AgentStatus | None:
    async with agents_at(port) as agents:
        return (await agents.watch_status("127.0.0.1", secret, -1, 0)).status


@pytest.mark.parametrize("secret", ["", SECRET], ids=["old pod", "pod with a secret"])
async def test_client_works_with_the_real_agent_server(secret: str) -> None:
    agent = FakeAgent(STATUS)
    server = agent.server(secret=secret)
    server.start()
    try:
        async with agents_at(server.port) as agents:
            answer = await agents.watch_status("127.0.0.1", secret, -1, 0)
            assert answer.status == KEPT
            assert len(BODY) < answer.size < len(BODY) + 1024
            watch = asyncio.ensure_future(
                agents.watch_status("127.0.0.1", secret, STATUS.revision, 30)
            )
            agent.cell.enter(AgentPhase.FAILED, 5.0)
            changed = (await watch).status
            assert changed is not None
            assert changed.phase is AgentPhase.FAILED
            order = AttemptOrder(job_uid=UID, attempt=4)
            assert await agents.order_attempt("127.0.0.1", secret, order)
            assert not await agents.order_attempt(
                "127.0.0.1", secret, AttemptOrder(job_uid="other", attempt=4)
            )
            assert agent.orders.received[0] == order
    finally:
        await asyncio.to_thread(server.close)


async def test_order_that_cannot_be_delivered_raises_no_error() -> None:
    async with agents_at(1) as agents:
        assert not await agents.order_attempt(
            "127.0.0.1", SECRET, AttemptOrder(job_uid=UID, attempt=4)
        )


async def test_caller_does_not_wait_until_an_order_is_delivered() -> None:
    """A hostile or lost agent would otherwise hold a worker and a request to the API server."""
    connected, release = asyncio.Event(), asyncio.Event()

    async def hold(_: asyncio.StreamWriter) -> None:
        connected.set()
        await release.wait()

    async with answering(hold) as port, asyncio.timeout(10):
        async with agents_at(port) as agents:
            for attempt in (2, 3):
                agents.send_order("127.0.0.1", SECRET, AttemptOrder(job_uid=UID, attempt=attempt))
            await connected.wait()
        release.set()  # Until here nobody answered, and the client was closed all the same.


async def test_response_in_pieces_is_read_completely() -> None:
    """A status of many ranks does not fit into one network packet."""

    async def in_pieces(writer: asyncio.StreamWriter) -> None:
        writer.write(head())
        for start in range(0, len(BODY), 1400):
            writer.write(BODY[start : start + 1400])
            await writer.drain()
            await asyncio.sleep(0.002)

    async with answering(in_pieces) as port:
        assert await get_status(port) == KEPT


async def test_immediate_answers_of_many_agents_leave_time_for_other_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fifty hostile agents that answer at once cost milliseconds each, and seconds in total."""
    read: list[bytes] = []
    rounds = 0
    read_in: list[int] = []

    async def send(*_: object, **__: object) -> Response:
        return Response(200, {}, BODY, len(BODY))

    def parse(body: bytes) -> None:
        read.append(body)
        read_in.append(rounds)

    monkeypatch.setattr(agents_module, "_parse", parse)
    async with agents_at(1) as agents:
        monkeypatch.setattr(agents._requests, "send", send)
        asking = [agents.watch_status(f"127.0.0.{one}", "", -1, 0) for one in range(50)]
        answered = asyncio.gather(*asking)
        while not answered.done():
            await asyncio.sleep(0)
            rounds += 1
    assert read == [BODY] * 50
    assert len(set(read_in)) == 50, "two answers in one round of the event loop"


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
    ids=["error", "redirect", "not JSON", "not a status", "cut off", "not HTTP", "empty"],
)
async def test_invalid_response_counts_as_no_answer(answer: bytes) -> None:
    async def say(writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await writer.drain()

    async with answering(say) as port:
        assert await get_status(port) is None


async def test_endless_response_is_cut_off() -> None:
    sent = 0

    async def talk(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while not writer.is_closing() and sent < 1 << 28:
            writer.write(b" " * 65536)
            sent += 65536
            await writer.drain()

    async with answering(talk) as port:
        assert await get_status(port) is None
    assert sent < 1 << 26


async def test_answer_of_a_slow_agent_counts_as_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agents_module, "_CONNECT_SECONDS", 0.1)
    connected = asyncio.Event()

    async def wait(_: asyncio.StreamWriter) -> None:
        connected.set()
        await asyncio.sleep(5)

    async with answering(wait) as port:
        assert await get_status(port) is None
        assert connected.is_set()


async def test_closed_port_counts_as_no_answer() -> None:
    assert await get_status(1) is None


async def test_client_with_a_wrong_secret_gets_no_status_and_delivers_no_order() -> None:
    agent = FakeAgent(STATUS)
    server = agent.server(secret=SECRET)
    server.start()
    try:
        async with agents_at(server.port) as agents:
            for wrong in ("", SECRET[::-1]):
                answer = await agents.watch_status("127.0.0.1", wrong, -1, 0)
                assert answer.status is None
                order = AttemptOrder(job_uid=UID, attempt=4)
                assert not await agents.order_attempt("127.0.0.1", wrong, order)
            assert agent.orders.received == []
    finally:
        await asyncio.to_thread(server.close)


@pytest.mark.parametrize(
    "signature",
    ["", sign_answer(SECRET, "another nonce", 200, BODY), "f" * 64, "f" * 65536],
    ids=["missing", "of another request", "invented", "too long"],
)
async def test_answer_without_the_pods_signature_counts_as_no_answer(
    signature: str,
) -> None:
    async def lie(writer: asyncio.StreamWriter) -> None:
        more = f"{SIGNATURE_HEADER}: {signature}\r\n" if signature else ""
        writer.write(head(more=more) + BODY)
        await writer.drain()

    async with answering(lie) as port:
        assert await get_status(port, SECRET) is None
        if len(signature) < 1000:
            assert await get_status(port) == KEPT  # The same answer of a pod without a secret.


async def test_client_keeps_the_progress_of_a_rank_that_was_ahead_when_the_attempt_ended() -> None:
    ranks = [heartbeat(rank=2 + i, local_rank=i, step=step) for i, step in enumerate((7, 9, 8))]
    for phase, kept in (("Training", []), ("Failed", [9])):
        agent = FakeAgent(agent_status(1, attempt=3, phase=phase, ranks=ranks))
        server = agent.server()
        server.start()
        try:
            found = await get_status(server.port)
        finally:
            await asyncio.to_thread(server.close)
        assert found is not None
        assert [one.step for one in found.ranks] == kept


QUESTION = InspectionRequest(job_uid=UID, question="stacks:a")


async def test_question_reaches_all_agents_though_one_does_not_answer() -> None:
    agent = FakeAgent(STATUS)
    server = agent.server(secret=SECRET)
    server.start()
    try:
        async with answering(silence) as silent, agents_at(server.port) as agents:
            reachable = ("127.0.0.1", server.port, SECRET)
            agents.send_inspection([("127.0.0.1", silent, SECRET), *[reachable] * 40], QUESTION)
            await asyncio.to_thread(
                wait_until, lambda: len(agent.questions) == 40, "all agents are asked"
            )
    finally:
        server.close()
    assert {one.question for one in agent.questions} == {"stacks:a"}


async def test_questions_that_are_not_answered_delay_no_attempt_order() -> None:
    agent = FakeAgent(STATUS)
    server = agent.server(secret=SECRET)
    server.start()
    try:
        async with answering(silence) as silent, agents_at(server.port) as agents:
            for _ in range(100):
                agents.send_inspection([("127.0.0.1", silent, SECRET)] * 100, QUESTION)
            order = AttemptOrder(job_uid=UID, attempt=4)
            assert await agents.order_attempt("127.0.0.1", SECRET, order)
    finally:
        server.close()


async def silence(writer: asyncio.StreamWriter) -> None:
    """Send no answer until the client closes the connection."""
    await writer.drain()
    await asyncio.sleep(30)
