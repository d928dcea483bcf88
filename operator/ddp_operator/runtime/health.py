"""The operator's own health endpoints."""

from aiohttp import web

from ddp_operator.runtime.workers import Heart

STUCK_SECONDS = 300.0
"""A worker that is on one job for longer than this hangs: every request has a shorter limit."""


async def serve_health(heart: Heart, port: int) -> web.AppRunner:
    """Serve /healthz and /readyz. The caller cleans the runner up."""

    async def healthz(_: web.Request) -> web.Response:
        stuck = heart.longest()
        if stuck > STUCK_SECONDS:
            return web.Response(status=503, text=f"a worker is stuck for {stuck:.0f} s\n")
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        if not heart.synced:
            return web.Response(status=503, text="jobs and pods have not been listed yet\n")
        return web.Response(text="ok\n")

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, port=port).start()
    return runner
