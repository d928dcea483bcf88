"""Make fake agents silent or hostile. The prefix of a namespace selects the behaviour."""

import asyncio
import json
import os
import random
from enum import StrEnum
from typing import Any

from aiohttp import web

from ddp_wire.messages import AgentPhase
from ddp_wire.signatures import SIGNATURE_HEADER, sign_answer

_CHUNK = os.urandom(1 << 16)
_LARGE = 1 << 28
"""Size of an endless answer, in bytes."""
_HOLD_SECONDS = 3600.0
_METRICS = 200
_FAILURES = 0.005
"""Share of hostile answers that report a failure, which ends an attempt."""


class Conduct(StrEnum):
    """Behaviour of all agents of a namespace."""

    HONEST = "honest"
    SILENT = "silent"
    """The agents accept a connection and never answer, as behind a policy that drops packets."""
    HOSTILE = "hostile"
    """The agents answer with any content, size and rate, or hold the connection open."""

    @classmethod
    def of(cls, namespace: str) -> "Conduct":
        """Return the behaviour of the agents in a namespace."""
        return next((one for one in cls if namespace.startswith(one)), cls.HONEST)


async def be_silent() -> web.Response:
    """Keep the connection open and never answer."""
    await asyncio.sleep(_HOLD_SECONDS)
    return web.Response(status=503)


async def be_hostile(
    request: web.Request, secret: str, nonce: str, status: dict[str, Any]
) -> web.StreamResponse:
    """Answer a request in a random way that costs the reader time or memory."""
    choice = random.random()  # noqa: S311
    if choice < 0.1:
        return await be_silent()
    if choice < 0.2:
        return await _answer_without_end(request)
    if choice < 0.3:
        return web.Response(body=_CHUNK, headers={SIGNATURE_HEADER: "x" * 4000})
    body = json.dumps(_false_status(status)).encode()
    return web.Response(
        body=body, headers={SIGNATURE_HEADER: sign_answer(secret, nonce, 200, body)}
    )


async def _answer_without_end(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(_LARGE // len(_CHUNK)):
        await response.write(_CHUNK)
    return response


def _false_status(status: dict[str, Any]) -> dict[str, Any]:
    """Return a valid signed status of the largest permitted size, different at each call."""
    phases = [one for one in AgentPhase if one not in {AgentPhase.SUCCEEDED, AgentPhase.FAILED}]
    failed = random.random() < _FAILURES  # noqa: S311
    step = random.randrange(2**53)  # noqa: S311
    metrics = {f"{random.random()}-{'m' * 500}": random.random() for _ in range(_METRICS)}  # noqa: S311
    return status | {
        "revision": random.randrange(2**53),  # noqa: S311
        "news": random.randrange(2**53),  # noqa: S311
        "phase": AgentPhase.FAILED if failed else random.choice(phases),  # noqa: S311
        "since": random.random() * 2e11,  # noqa: S311
        "command": ["x" * 4000] * 10,
        "progress": {"step": step, "epoch": step, "etaSeconds": step, "metrics": metrics},
        "checkpoint": {"step": step, "path": "p" * 4096, "at": 2e11},
    }
