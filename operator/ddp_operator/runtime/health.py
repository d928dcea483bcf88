"""The operator's own health endpoints."""

from collections.abc import Callable

from aiohttp import web

from ddp_operator.runtime.workers import Heart

STUCK_SECONDS = 300.0
"""A worker that is on one job for longer than this hangs: every request has a shorter limit."""
UNSERVED_SECONDS = 300.0
"""Requests that fail for longer than this, one and all, may go through from a new process."""

StandingBy = Callable[[], tuple[bool, str] | None]


def _leads() -> None:
    return None


async def serve_health(heart: Heart, port: int, standing_by: StandingBy = _leads) -> web.AppRunner:
    """Serve /healthz and /readyz. The caller cleans the runner up.

    `standing_by` gives readiness and a sentence while another process leads, None otherwise.
    """

    async def healthz(_: web.Request) -> web.Response:
        stuck, unserved = heart.longest(), heart.unserved()
        if stuck > STUCK_SECONDS:
            return _answer(False, f"a worker is stuck for {stuck:.0f} s")
        if unserved > UNSERVED_SECONDS:
            return _answer(False, f"all requests to the API server failed for {unserved:.0f} s")
        return _answer(True, "ok")

    async def readyz(_: web.Request) -> web.Response:
        waiting = standing_by()
        if waiting is not None:
            return _answer(*waiting)
        if not heart.synced:
            why = f": {heart.problem}" if heart.problem else ""
            return _answer(False, f"jobs and pods have not been listed yet{why}")
        return _answer(True, "ok")

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, port=port).start()
    return runner


def _answer(good: bool, text: str) -> web.Response:
    return web.Response(status=200 if good else 503, text=f"{text}\n")
