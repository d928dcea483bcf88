"""HTTP client of the agents.

A failed request is not an error, because the pod's own state shows what happened.
"""

import asyncio
import functools

import aiohttp
from pydantic import ValidationError

from ddp_operator.cluster.base import AgentAnswer
from ddp_wire.contract import AGENT_PORT, AgentPhase, AgentStatus, AttemptOrder, Heartbeat
from ddp_wire.signatures import (
    NONCE_HEADER,
    SIGNATURE_HEADER,
    is_genuine,
    random_text,
    sign_answer,
    sign_request,
)

_LIMIT = 1 << 18
"""Maximum size of a response, in bytes. The limit protects the operator from untrusted pods."""
_CONNECT_SECONDS = 1.5
_SHORT = aiohttp.ClientTimeout(total=1.5)
_OK = 200
_FINAL_PHASES = {AgentPhase.SUCCEEDED, AgentPhase.FAILED, AgentPhase.PREEMPTED}


class Agents:
    """Client of the agents of worker pods, by pod address. Close it after use."""

    def __init__(self, port: int = AGENT_PORT) -> None:
        """Create a client. The event loop must be running."""
        # Each watched pod holds one connection, so the number of connections has no limit.
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        self._port = port
        self._orders: dict[str, asyncio.Task[bool]] = {}
        """Orders that are being sent, by address."""

    async def close(self) -> None:
        """Drop the orders that are being sent, and close all connections."""
        orders = list(self._orders.values())
        for order in orders:
            order.cancel()
        await asyncio.gather(*orders, return_exceptions=True)
        await self._session.close()

    async def watch_status(
        self, host: str, secret: str, revision: int, seconds: float
    ) -> AgentAnswer:
        """Return the agent's answer once its revision differs, or after this many seconds."""
        target = f"/status?revision={revision}&wait={seconds:.0f}"
        nonce, headers = _signed(secret, "GET", target)
        limit = aiohttp.ClientTimeout(total=seconds + _CONNECT_SECONDS, connect=_CONNECT_SECONDS)
        try:
            async with self._session.get(
                self._url(host, target), headers=headers, timeout=limit, allow_redirects=False
            ) as response:
                body, size = await _read(response)
                if response.status != _OK or not _is_genuine(response, secret, nonce, body):
                    return AgentAnswer(None, size)
                return AgentAnswer(_parse(body), size)
        except (aiohttp.ClientError, TimeoutError, OSError):
            # The agent starts or stops, its node is lost, or a policy is in the way.
            return AgentAnswer()

    def send_order(self, host: str, secret: str, order: AttemptOrder) -> None:
        """Begin to send an attempt order, in place of an older one that is still being sent."""
        older = self._orders.pop(host, None)
        if older is not None:
            older.cancel()
        sending = asyncio.ensure_future(self.order_attempt(host, secret, order))
        self._orders[host] = sending
        sending.add_done_callback(functools.partial(self._forget_order, host))

    def _forget_order(self, host: str, sent: asyncio.Task[bool]) -> None:
        if self._orders.get(host) is sent:
            del self._orders[host]

    async def order_attempt(self, host: str, secret: str, order: AttemptOrder) -> bool:
        """Send an attempt order. Return whether the agent accepted it."""
        body = order.to_json().encode()
        _, headers = _signed(secret, "POST", "/attempt", body)
        try:
            async with self._session.post(
                self._url(host, "/attempt"),
                data=body,
                headers=headers,
                timeout=_SHORT,
                allow_redirects=False,
            ) as response:
                return response.status == _OK
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    def _url(self, host: str, target: str) -> str:
        place = f"[{host}]" if ":" in host else host
        return f"http://{place}:{self._port}{target}"


def _signed(secret: str, method: str, target: str, body: bytes = b"") -> tuple[str, dict[str, str]]:
    """Return a new nonce, and the headers that sign a request; none for a pod without a secret."""
    nonce = random_text()
    if not secret:
        return nonce, {}
    signature = sign_request(secret, nonce, method, target, body)
    return nonce, {NONCE_HEADER: nonce, SIGNATURE_HEADER: signature}


def _is_genuine(response: aiohttp.ClientResponse, secret: str, nonce: str, body: bytes) -> bool:
    """Return whether the pod with this secret answered the request with this nonce."""
    if not secret:
        return True
    expected = sign_answer(secret, nonce, response.status, body)
    return is_genuine(response.headers.get(SIGNATURE_HEADER), expected)


async def _read(response: aiohttp.ClientResponse) -> tuple[bytes, int]:
    """Return the body, or "" if it is larger than the limit, and the number of bytes read."""
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > _LIMIT:
            return b"", len(body)
    return bytes(body), len(body)


def _parse(body: bytes) -> AgentStatus | None:
    """Return the status, with the fields that a decision can depend on, or None if it is invalid.

    The statuses of all agents stay in memory, so a hostile agent must not choose their size.
    """
    try:
        status = AgentStatus.model_validate_json(body)
    except ValidationError:
        return None
    return status.model_copy(update={"command": [], "ranks": _used_ranks(status)})


def _used_ranks(status: AgentStatus) -> list[Heartbeat]:
    """Return the heartbeat of rank 0, or of the rank that was ahead when the attempt ended.

    The latter tells the reached step if rank 0's newest report is older.
    """
    first = [one for one in status.ranks if one.rank == 0][:1]
    if first or status.phase not in _FINAL_PHASES or not status.ranks:
        return first
    ahead = max(status.ranks, key=lambda one: one.step)
    unused = {"progress": None, "checkpoint": None, "training_times": None}
    return [ahead.model_copy(update=unused)]
