"""Serve the operator's own HTTP endpoints: health and metrics."""

import asyncio
from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from ddp_operator.runtime.workers import WorkerActivity

STUCK_SECONDS = 300.0
"""Maximum seconds for which a worker may process one job. Every request times out earlier."""
UNSERVED_SECONDS = 300.0
"""Maximum seconds for which all requests may fail before the process is restarted."""

Readiness = Callable[[], tuple[bool, str] | None]


def _always_leads() -> None:
    return None


async def serve_health(
    activity: WorkerActivity,
    registry: CollectorRegistry,
    port: int,
    standby_readiness: Readiness = _always_leads,
) -> web.AppRunner:
    """Serve /healthz, /readyz and /metrics. The caller must clean up the returned runner.

    Args:
        activity: Activity of this process's workers.
        registry: Metrics to serve.
        port: Port to listen on.
        standby_readiness: Function that returns the readiness and a message while another process
            is the leader, and None while this process is the leader.
    """

    async def healthz(_: web.Request) -> web.Response:
        busy, unserved = activity.longest_busy_seconds(), activity.unserved_seconds()
        if busy > STUCK_SECONDS:
            return _response(False, f"a worker is stuck for {busy:.0f} s")
        if unserved > UNSERVED_SECONDS:
            return _response(False, f"all requests to the API server failed for {unserved:.0f} s")
        return _response(True, "ok")

    async def readyz(_: web.Request) -> web.Response:
        standby = standby_readiness()
        if standby is not None:
            return _response(*standby)
        if not activity.synced:
            reason = f": {activity.problem}" if activity.problem else ""
            return _response(False, f"jobs and pods have not been listed yet{reason}")
        unserved = activity.unserved_namespaces.items()
        lines = [f"the namespace {name} is not served: {error}" for name, error in unserved]
        refused = activity.refused_watches.items()
        # A namespace that is not served is not watched either.
        lines += [text for (_, name), text in refused if name not in activity.unserved_namespaces]
        return _response(True, "\n".join(["ok", *lines]))

    async def metrics(_: web.Request) -> web.Response:
        # The text of a thousand jobs takes a part of a second.
        text = await asyncio.to_thread(generate_latest, registry)
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.add_routes(
        [
            web.get("/healthz", healthz),
            web.get("/readyz", readyz),
            web.get("/metrics", metrics),
        ]
    )
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, port=port).start()
    return runner


def _response(ok: bool, text: str) -> web.Response:
    return web.Response(status=200 if ok else 503, text=f"{text}\n")
