"""HTTP client for untrusted agents. It limits the size of an answer before it parses it.

The client accepts only the form that the agent's server sends: one head with a Content-Length, and
a body of this length. It refuses all other forms that HTTP allows, because a hostile pod could use
them to keep the client busy without end: interim answers (1xx), chunks, encodings, trailers, or an
answer sent byte by byte.
"""

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ddp_operator.limits import BODY_BYTES, HEAD_BYTES, MOST_HEADERS, PIECE_BYTES

Address = tuple[str, int]
"""IP address of a pod and port of its agent."""
_IDLE_SECONDS = 4.0
"""Seconds after which the client closes an unused connection. The agent does so after 5 s."""
_END = b"\r\n\r\n"
_STATUS_LINE = re.compile(rb"HTTP/1\.1 ([2-5][0-9]{2})(?: [ -~]*)?")
_LENGTH = re.compile(r"[0-9]{1,6}")


@dataclass(frozen=True)
class Response:
    """Complete answer of an agent."""

    code: int
    """HTTP status."""
    headers: Mapping[str, str]
    """Headers by lower-case name."""
    body: bytes
    size: int
    """Number of bytes that were read. Each received piece counts as at least 512 bytes."""


class NoResponseError(Exception):
    """Error for a missing or late answer, or one that no genuine agent would send."""

    def __init__(self, message: str, size: int = 0, *, closed: bool = False) -> None:
        super().__init__(message)
        self.size = size
        """Number of bytes that were read. Each received piece counts as 512 bytes or more."""
        self.closed = closed
        """Whether the agent closed the connection."""


class AgentConnections:
    """Open connections to agents, which are reused for a few seconds."""

    def __init__(self, most: int) -> None:
        """Create a client without connections.

        Args:
            most: Maximum number of open connections. Further requests wait until a connection is
                free.
        """
        self._most = most
        self._places = asyncio.Semaphore(most)
        self._idle: dict[Address, _Connection] = {}
        """Unused connection by address, the longest unused one first."""
        self._open: set[_Connection] = set()

    @property
    def is_full(self) -> bool:
        """Whether a new request must wait until another request ends."""
        return self._places.locked()

    def close(self) -> None:
        """Close all connections."""
        for connection in list(self._open):
            connection.abort()
        self._idle.clear()

    async def send(
        self, address: Address, request: bytes, *, connect_seconds: float, seconds: float
    ) -> Response:
        """Send a request and return its answer.

        Args:
            address: Address of the agent.
            request: Head and body of the request.
            connect_seconds: Longest time until the connection is open.
            seconds: Longest time until the answer is complete.

        Raises:
            NoResponseError: There was no valid answer in time.
        """
        async with self._places:
            idle = self._idle.pop(address, None)
            if idle is not None:
                try:
                    return await self._exchange(idle, request, seconds)
                except NoResponseError as error:
                    if error.size or not error.closed:
                        raise
                    # The agent closed the unused connection. It did not read the request.
            connection = await self._connect(address, min(connect_seconds, seconds))
            return await self._exchange(connection, request, seconds)

    async def _connect(self, address: Address, seconds: float) -> "_Connection":
        while self._idle and len(self._open) >= self._most:
            self._idle.pop(next(iter(self._idle))).abort()
        connection = _Connection(address, self._forget)
        self._open.add(connection)
        try:
            async with asyncio.timeout(seconds):
                loop = asyncio.get_running_loop()
                await loop.create_connection(lambda: connection, *address)
        except BaseException as error:
            self._open.discard(connection)
            connection.abort()
            if isinstance(error, OSError | TimeoutError):
                raise NoResponseError(f"no connection: {error!r}") from error
            raise
        return connection

    async def _exchange(
        self, connection: "_Connection", request: bytes, seconds: float
    ) -> Response:
        try:
            async with asyncio.timeout(seconds):
                response = await connection.exchange(request)
        except TimeoutError as error:
            raise NoResponseError("no answer in time", connection.size) from error
        finally:
            connection.end()
        if response.headers.get("connection", "").lower() == "close":
            connection.abort()
        elif connection in self._open:
            self._keep(connection)
        return response

    def _keep(self, connection: "_Connection") -> None:
        older = self._idle.pop(connection.address, None)
        if older is not None:
            older.abort()
        self._idle[connection.address] = connection
        connection.abort_after(_IDLE_SECONDS)

    def _forget(self, connection: "_Connection") -> None:
        """Remove a closed connection from the open ones."""
        self._open.discard(connection)
        if self._idle.get(connection.address) is connection:
            del self._idle[connection.address]


class _Connection(asyncio.Protocol):
    """One connection to an agent. It reads one answer at a time and refuses unrequested bytes."""

    def __init__(self, address: Address, on_lost: Callable[["_Connection"], None]) -> None:
        self.address, self._on_lost = address, on_lost
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Response] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._read = bytearray()
        self._body_at = 0
        """Position of the body, or 0 while the head is not complete."""
        self._code, self._headers, self._length = 0, dict[str, str](), 0
        self.size = 0
        """Number of bytes of the answer so far. Each received piece counts as at least 512
        bytes."""

    async def exchange(self, request: bytes) -> Response:
        """Send a request and return its answer.

        Raises:
            NoResponseError: No agent would send this answer, or the connection was closed.
        """
        if self._timer is not None:
            self._timer.cancel()
        self._read.clear()
        self._body_at = self.size = 0
        if self._transport is None or self._transport.is_closing():
            raise NoResponseError("the connection is closed", closed=True)
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    def end(self) -> None:
        """End a request. Close the connection unless the answer was complete."""
        answer, self._answer = self._answer, None
        if answer is None or not answer.done() or answer.cancelled() or answer.exception():
            self.abort()

    def abort(self) -> None:
        """Close the connection at once."""
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()

    def abort_after(self, seconds: float) -> None:
        """Close the connection after some seconds, unless a request uses it before."""
        self._timer = asyncio.get_running_loop().call_later(seconds, self.abort)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Implement `asyncio.Protocol.connection_made`."""
        if isinstance(transport, asyncio.Transport):
            self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Implement `asyncio.Protocol.connection_lost`."""
        del exc
        self._fail("the connection was closed", closed=True)
        self._on_lost(self)

    def data_received(self, data: bytes) -> None:
        """Implement `asyncio.Protocol.data_received`."""
        answer = self._answer
        if answer is None or answer.done():
            self.abort()
            return
        self.size += max(len(data), PIECE_BYTES)
        searched = max(0, len(self._read) - len(_END) + 1)
        self._read += data
        if not self._body_at and not self._read_head(searched):
            return
        missing = self._body_at + self._length - len(self._read)
        if missing < 0 or self.size > HEAD_BYTES + BODY_BYTES:
            self._fail("the answer is longer than the limit")
        elif missing == 0:
            body = bytes(self._read[self._body_at :])
            self._read.clear()
            answer.set_result(Response(self._code, self._headers, body, self.size))

    def _read_head(self, searched: int) -> bool:
        """Parse the head of the answer once it has arrived. Return whether it is valid."""
        end = self._read.find(_END, searched, HEAD_BYTES)
        if end < 0:
            if self.size >= HEAD_BYTES:
                self._fail("the head of the answer is longer than the limit")
            return False
        try:
            self._code, self._headers = _parse_head(bytes(self._read[:end]))
            self._length = _length_of_body(self._headers)
        except ValueError as error:
            self._fail(str(error))
            return False
        self._body_at = end + len(_END)
        return True

    def _fail(self, message: str, *, closed: bool = False) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(NoResponseError(message, self.size, closed=closed))
        self.abort()


def _parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    """Return the HTTP status and the headers from the head of an answer.

    Raises:
        ValueError: No agent would send this head.
    """
    line, *fields = head.split(b"\r\n", MOST_HEADERS + 1)
    found = _STATUS_LINE.fullmatch(line)
    if found is None or len(fields) > MOST_HEADERS:
        raise ValueError("the answer has no valid status line, or too many headers")
    headers: dict[str, str] = {}
    for field in fields:
        name, colon, value = field.decode("latin-1").partition(":")
        if not colon or name.lower() in headers:
            raise ValueError("the answer has an invalid or repeated header")
        headers[name.lower()] = value.strip()
    return int(found[1]), headers


def _length_of_body(headers: Mapping[str, str]) -> int:
    """Return the length of the body from the headers.

    Raises:
        ValueError: The headers contain no length, a length above the limit, or an encoding.
    """
    if "transfer-encoding" in headers or "content-encoding" in headers:
        raise ValueError("the answer has an encoding")
    length = headers.get("content-length", "")
    if _LENGTH.fullmatch(length) is None or int(length) > BODY_BYTES:
        raise ValueError("the answer states no valid length")
    return int(length)
