"""HTTP client of the agents.

A failed request is not an error, because the pod's own state shows what happened.
"""

import asyncio

import aiohttp
from pydantic import ValidationError

from ddp_wire.contract import AGENT_PORT, LONGEST_WAIT_SECONDS, AgentStatus, AttemptOrder

_LIMIT = 1 << 20
"""Maximum size of a response, in bytes. The limit protects the operator from untrusted pods."""
_SHORT = aiohttp.ClientTimeout(total=1.5)
_LONG = aiohttp.ClientTimeout(total=LONGEST_WAIT_SECONDS + 5.0, connect=1.5)
_BACKOFF_SECONDS = 10.0
"""After a timeout, skip optional polls for this long.

The agent's Kubernetes node may be lost, and each poll would take the whole timeout. Any response,
also to a watch, ends the backoff.
"""
_OK = 200


class Agents:
    """Client of the agents of worker pods, by pod address. Close it after use."""

    def __init__(self, port: int = AGENT_PORT) -> None:
        """Create a client. The event loop must be running."""
        # Each watched pod holds one connection, so the number of connections has no limit.
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        self._port = port
        self._backoff_until: dict[str, float] = {}

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def get_status(self, host: str, *, required: bool = True) -> AgentStatus | None:
        """Return the agent's status, or None when there is no valid response in time.

        Args:
            host: Address of the agent.
            required: Whether to poll even an agent that timed out recently.
        """
        if not required and self._backoff_until.get(host, 0.0) > _now():
            return None
        return await self._read(host, "status", _SHORT)

    async def watch_status(self, host: str, revision: int) -> AgentStatus | None:
        """Return the agent's status once its revision differs, or after the longest wait.

        Returns:
            The status, or None as for `get_status`.
        """
        query = f"revision={revision}&wait={LONGEST_WAIT_SECONDS:.0f}"
        return await self._read(host, f"status?{query}", _LONG)

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

    async def _read(self, host: str, path: str, limit: aiohttp.ClientTimeout) -> AgentStatus | None:
        url = f"{self._url(host)}/{path}"
        try:
            async with self._session.get(url, timeout=limit, allow_redirects=False) as response:
                self._backoff_until.pop(host, None)
                if response.status != _OK:
                    return None
                body = bytearray()
                async for chunk in response.content.iter_any():
                    body += chunk
                    if len(body) > _LIMIT:
                        return None
                return AgentStatus.model_validate_json(bytes(body))
        except TimeoutError:
            self._back_off(host)
            return None
        except (aiohttp.ClientError, OSError, ValidationError):
            return None  # The agent starts or stops, or the connection broke.

    def _back_off(self, host: str) -> None:
        now = _now()
        self._backoff_until = {h: end for h, end in self._backoff_until.items() if end > now}
        self._backoff_until[host] = now + _BACKOFF_SECONDS

    def _url(self, host: str) -> str:
        return f"http://[{host}]:{self._port}" if ":" in host else f"http://{host}:{self._port}"


def _now() -> float:
    return asyncio.get_running_loop().time()
