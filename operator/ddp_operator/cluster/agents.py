"""HTTP client of the agents.

A failed request is not an error, because the pod's own state shows what happened.
"""

import aiohttp
from pydantic import ValidationError

from ddp_wire.contract import AGENT_PORT, AgentStatus, AttemptOrder

_LIMIT = 1 << 18
"""Maximum size of a response, in bytes. The limit protects the operator from untrusted pods."""
_CONNECT_SECONDS = 1.5
_SHORT = aiohttp.ClientTimeout(total=1.5)
_OK = 200


class Agents:
    """Client of the agents of worker pods, by pod address. Close it after use."""

    def __init__(self, port: int = AGENT_PORT) -> None:
        """Create a client. The event loop must be running."""
        # Each watched pod holds one connection, so the number of connections has no limit.
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        self._port = port

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def watch_status(self, host: str, revision: int, seconds: float) -> AgentStatus | None:
        """Return the agent's status once its revision differs, or after this many seconds.

        Returns:
            The status, or None when there is no valid response in time.
        """
        url = f"{self._url(host)}/status?revision={revision}&wait={seconds:.0f}"
        limit = aiohttp.ClientTimeout(total=seconds + _CONNECT_SECONDS, connect=_CONNECT_SECONDS)
        try:
            async with self._session.get(url, timeout=limit, allow_redirects=False) as response:
                return _parse(await _read(response)) if response.status == _OK else None
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None  # The agent starts or stops, its node is lost, or a policy is in the way.

    async def order_attempt(self, host: str, order: AttemptOrder) -> bool:
        """Send an attempt order. Return whether the agent accepted it."""
        try:
            async with self._session.post(
                f"{self._url(host)}/attempt",
                data=order.to_json(),
                timeout=_SHORT,
                allow_redirects=False,
            ) as response:
                return response.status == _OK
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    def _url(self, host: str) -> str:
        return f"http://[{host}]:{self._port}" if ":" in host else f"http://{host}:{self._port}"


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """Return the body, or "" if it is larger than the limit."""
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > _LIMIT:
            return b""
    return bytes(body)


def _parse(body: bytes) -> AgentStatus | None:
    """Return the status, with the fields that a decision can depend on, or None if it is invalid.

    The statuses of all agents stay in memory, so a hostile agent must not choose their size.
    """
    try:
        status = AgentStatus.model_validate_json(body)
    except ValidationError:
        return None
    first = [one for one in status.ranks if one.rank == 0][:1]
    return status.model_copy(update={"command": [], "ranks": first})
