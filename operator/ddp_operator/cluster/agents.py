"""Talks to agents over HTTP. Whatever fails is no error: a pod's own state speaks for it."""

import asyncio

import aiohttp
from pydantic import ValidationError

from ddp_wire.contract import AGENT_PORT, LONGEST_WAIT_SECONDS, AgentStatus, AttemptOrder

_LIMIT = 1 << 20
"""Bytes read at most: what a pod says is not trusted to be short."""
_SHORT = aiohttp.ClientTimeout(total=1.5)
_LONG = aiohttp.ClientTimeout(total=LONGEST_WAIT_SECONDS + 5.0, connect=1.5)
_HUSH_SECONDS = 10.0
"""How long one that let a question run out is asked by those alone that insist.

Its node may be lost, and each look would wait for it anew. Who listens for its news clears this."""
_OK = 200


class Agents:
    """The agents of worker pods, by their addresses. Close it at the end."""

    def __init__(self, port: int = AGENT_PORT) -> None:
        """Make it inside the running event loop."""
        # Each pod that is followed holds a connection: as many as there are pods.
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        self._port = port
        self._hushed: dict[str, float] = {}

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def ask(self, host: str, *, insist: bool = True) -> AgentStatus | None:
        """The agent's status, or None when it gives none in time.

        Args:
            host: Its address.
            insist: Whether to ask even one that let a question run out a moment ago.
        """
        if not insist and self._hushed.get(host, 0.0) > _now():
            return None
        return await self._read(host, "status", _SHORT)

    async def news(self, host: str, revision: int) -> AgentStatus | None:
        """Its status once it is of another revision, or after a while; None as for `ask`."""
        query = f"revision={revision}&wait={LONGEST_WAIT_SECONDS:.0f}"
        return await self._read(host, f"status?{query}", _LONG)

    async def order(self, host: str, order: AttemptOrder) -> bool:
        """Order an attempt. Returns whether the agent has taken note."""
        try:
            async with self._session.post(
                f"{self._url(host)}/attempt",
                data=order.to_json(),
                timeout=_SHORT,
                allow_redirects=False,
            ) as answer:
                return answer.status == _OK
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    async def _read(self, host: str, path: str, limit: aiohttp.ClientTimeout) -> AgentStatus | None:
        url = f"{self._url(host)}/{path}"
        try:
            async with self._session.get(url, timeout=limit, allow_redirects=False) as answer:
                self._hushed.pop(host, None)
                if answer.status != _OK:
                    return None
                text = bytearray()
                async for chunk in answer.content.iter_any():
                    text += chunk
                    if len(text) > _LIMIT:
                        return None
                return AgentStatus.model_validate_json(bytes(text))
        except TimeoutError:
            self._hush(host)
            return None
        except (aiohttp.ClientError, OSError, ValidationError):
            return None  # Starting, ending, or cut off.

    def _hush(self, host: str) -> None:
        now = _now()
        self._hushed = {h: until for h, until in self._hushed.items() if until > now}
        self._hushed[host] = now + _HUSH_SECONDS

    def _url(self, host: str) -> str:
        return f"http://[{host}]:{self._port}" if ":" in host else f"http://{host}:{self._port}"


def _now() -> float:
    return asyncio.get_running_loop().time()
