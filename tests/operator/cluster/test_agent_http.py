"""Tests of the client of untrusted agents with servers that send invalid answers."""

import asyncio
import gc
import gzip
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import pytest

from ddp_operator.cluster import agents as agents_module
from ddp_operator.cluster.agents import Agents, connections_for
from ddp_operator.limits import BODY_BYTES, HEAD_BYTES
from tests.operator.support import agent_status

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
BODY = agent_status(0).to_json().encode()
ANSWER = OK + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY


def stated(body: bytes, *headers: bytes) -> bytes:
    """Return an answer with a Content-Length."""
    lines = (b"Content-Length: %d" % len(body), *headers)
    return OK + b"".join(line + b"\r\n" for line in lines) + b"\r\n" + body


def zipped(body: bytes) -> bytes:
    return stated(gzip.compress(body), b"Content-Encoding: gzip")


HEARTBEAT = {"attempt": 1, "rank": 1, "localRank": 0, "phase": "Training", "at": 1}
MANY_RANKS = json.dumps(json.loads(BODY) | {"ranks": [HEARTBEAT] * 2600}).encode()[:BODY_BYTES]
HOSTILE: dict[str, tuple[bytes, bytes]] = {
    "endless 100 Continue": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 2000),
    "endless 102 Processing": (b"", b"HTTP/1.1 102 Processing\r\n\r\n" * 2000),
    "endless large headers": (OK, (b"X: " + b"a" * 8000 + b"\r\n") * 8),
    "endless small headers": (OK, b"a: b\r\n" * 10000),
    "many small headers": (OK + b"a: b\r\n" * 1000 + b"Content-Length: 0\r\n\r\n", b""),
    "endless status line": (b"HTTP/1.1 200 ", b"a" * 65536),
    "endless line ends": (b"", b"\r\n" * 30000),
    "gzip of 8 MiB": (zipped(b"\0" * (8 << 20)), b""),
    "unknown encoding": (stated(b"\x28\xb5\x2f\xfd", b"Content-Encoding: zstd"), b""),
    "endless chunks": (CHUNKED, b"10000\r\n" + b" " * 65536 + b"\r\n"),
    "endless tiny chunks": (CHUNKED, b"1\r\n \r\n" * 10000),
    "endless chunk extension": (CHUNKED + b"1;", b"a" * 65536),
    "endless trailers": (CHUNKED + b"0\r\n", (b"X: " + b"a" * 8000 + b"\r\n") * 8),
    "body without an end": (OK + b"\r\n", b" " * 65536),
    "body longer than stated": (OK + b"Content-Length: 10\r\n\r\n", b" " * 65536),
    "huge stated length": (OK + b"Content-Length: 99999999999\r\n\r\n", b" " * 65536),
    "two lengths": (OK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{} ", b""),
    "negative length": (OK + b"Content-Length: -1\r\n\r\n", b""),
    "answers without end": (b"", ANSWER * 1000),
    "switch of protocols": (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", b"a" * 65536),
    "nested JSON": (stated(b"[" * 200_000), b""),
    "thousands of ranks": (stated(MANY_RANKS), b""),
    "nothing": (b"", b""),
}


@contextmanager
def serving(talk: Callable[[socket.socket], None]) -> Iterator[int]:
    """Serve each connection with `talk`, in one thread per connection. Yield the port."""
    server = socket.create_server(("127.0.0.1", 0))
    ended = threading.Event()

    def serve(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.recv(4096)
            talk(connection)
            ended.wait(20)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield server.getsockname()[1]
    finally:
        ended.set()
        server.shutdown(socket.SHUT_RDWR)
        server.close()


async def cpu_seconds_of_an_answer(port: int) -> float:
    """Return the CPU seconds that the event loop needs for one request."""
    agents = Agents(port)
    gc.collect()  # Else a collection of what other tests have left may fall into the request.
    try:
        before = time.thread_time()  # The server has threads of its own.
        answer = await agents.watch_status("127.0.0.1", "", -1, 0)
        seconds = time.thread_time() - before
    finally:
        await agents.close()
    assert answer.size <= HEAD_BYTES + BODY_BYTES + (256 << 10), "at most one read too much"
    return seconds


@pytest.mark.parametrize("kind", HOSTILE)
async def test_hostile_answer_costs_little(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents_module, "_CONNECT_SECONDS", 0.3)
    begin, more = HOSTILE[kind]

    def talk(connection: socket.socket) -> None:
        connection.sendall(begin)
        while more:
            connection.sendall(more)

    with serving(talk) as port:
        assert await cpu_seconds_of_an_answer(port) < 0.1


@pytest.mark.parametrize("begin", [b"HTTP/1.1 200 ", OK + b"Content-Length: 200000\r\n\r\n"])
async def test_answer_that_arrives_in_single_bytes_is_cut_off(begin: bytes) -> None:
    sent = 0

    def talk(connection: socket.socket) -> None:
        nonlocal sent
        connection.sendall(begin)
        while True:
            connection.sendall(b"1")
            sent += 1
            time.sleep(0.0001)

    with serving(talk) as port:
        assert await cpu_seconds_of_an_answer(port) < 0.1
    assert sent < 20_000


@asynccontextmanager
async def counting_server(close_each: bool = False) -> AsyncIterator[tuple[int, list[int]]]:
    """Serve valid answers. Yield the port, and the requests of each connection."""
    requests: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = len(requests)
        requests.append(0)
        with suppress(asyncio.IncompleteReadError):
            while await reader.readuntil(b"\r\n\r\n"):
                requests[number] += 1
                writer.write(ANSWER)
                if close_each:
                    break
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], requests


async def test_connection_to_an_agent_is_reused() -> None:
    async with counting_server() as (port, requests):
        agents = Agents(port)
        for _ in range(3):
            assert (await agents.watch_status("127.0.0.1", "", -1, 0)).status is not None
        await agents.close()
        assert requests == [3]


async def test_connection_that_the_agent_closed_is_replaced() -> None:
    async with counting_server(close_each=True) as (port, requests):
        agents = Agents(port)
        for _ in range(3):
            assert (await agents.watch_status("127.0.0.1", "", -1, 0)).status is not None
        await agents.close()
        assert requests == [1, 1, 1]


async def test_connections_are_bounded_and_agents_take_turns(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Without a bound the agents would leave no open file for the API server."""
    most_open = open_now = 0
    all_closed = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal most_open, open_now
        open_now += 1
        all_closed.clear()
        most_open = max(most_open, open_now)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"\r\n\r\n"):
                await asyncio.sleep(0.01)
                writer.write(ANSWER)
        open_now -= 1
        writer.close()
        if not open_now:
            all_closed.set()

    server = await asyncio.start_server(serve, "0.0.0.0", 0)  # noqa: S104 (20 loopback addresses)
    async with server:
        agents = Agents(server.sockets[0].getsockname()[1], most=4)
        hosts = [f"127.0.0.{number}" for number in range(1, 21)]
        found = await asyncio.gather(*(agents.watch_status(h, "", -1, 0) for h in hosts))
        await agents.close()
        await all_closed.wait()
    assert all(answer.status is not None for answer in found)
    # The server learns of a closed connection a moment later.
    assert most_open <= 2 * 4
    assert [r.message for r in caplog.records].count(
        "all 4 connections to agents are open, so further agents take turns: the limit of"
        " open files (RLIMIT_NOFILE) permits no more"
    ) == 1


@pytest.mark.parametrize(
    ("files", "connections"), [(256, 64), (1024, 832), (64, 16), (-1, 65536), (1 << 30, 65536)]
)
def test_limit_of_open_files_leaves_room_for_requests_to_the_api_server(
    files: int, connections: int
) -> None:
    assert connections_for(files) == connections
