"""Asks agents for their status over HTTP."""

import aiohttp
from pydantic import ValidationError

from ddp_agent.contract import AgentStatus

TIMEOUT = aiohttp.ClientTimeout(total=1.5)
_LIMIT = 1 << 20
"""Bytes read at most: what a pod says is not trusted to be short."""


async def ask_agent(session: aiohttp.ClientSession, host: str, port: int) -> AgentStatus | None:
    """The status of the agent at an address, or None when it gives none in time."""
    url = f"http://[{host}]:{port}/status" if ":" in host else f"http://{host}:{port}/status"
    try:
        async with session.get(url, timeout=TIMEOUT, allow_redirects=False) as answer:
            if answer.status != 200:  # noqa: PLR2004 (HTTP's OK)
                return None
            text = bytearray()
            async for chunk in answer.content.iter_any():
                text += chunk
                if len(text) > _LIMIT:
                    return None
            return AgentStatus.model_validate_json(bytes(text))
    except (aiohttp.ClientError, TimeoutError, OSError, ValidationError):
        return None  # Starting, ending, or cut off: its pod's state speaks for it.
