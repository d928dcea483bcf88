"""API server over real HTTP with Leases, empty lists and configurable faults."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from ddp_operator.builders.kinds import KINDS
from ddp_operator.cluster.base import ClusterError
from tests.operator.fake_leases import LeaseServer

Fault = Callable[[web.Request], web.StreamResponse | None]


def _resource(plural: str, kind: str) -> dict[str, Any]:
    verbs = ["get", "list", "watch"]
    return {"name": plural, "kind": kind, "namespaced": True, "verbs": verbs, "singularName": ""}


VERSION = {"version": "v1alpha1"}
DISCOVERY = {
    "/version": {"major": "1", "minor": "35"},
    "/api": {"versions": ["v1"]},
    # Kopf starts no watch without it.
    "/api/v1": {"resources": [_resource("namespaces", "Namespace")]},
    "/apis": {
        "groups": [
            {"name": "ddp-trainer.dev", "versions": [VERSION], "preferredVersion": VERSION},
        ]
    },
    "/apis/ddp-trainer.dev/v1alpha1": {"resources": [_resource("ddpjobs", "DDPJob")]},
}


class FakeApi:
    """API server that listens at `address` after `start`."""

    def __init__(self) -> None:
        self.leases = LeaseServer()
        self.fault: Fault = lambda _: None
        """Function that returns the response to send instead of the normal one, or None."""
        self.before: Callable[[web.Request], Awaitable[None]] | None = None
        """Coroutine function to await before each response, if set."""
        self.requests: list[tuple[str, str]] = []
        """Method and path of all requests."""
        self.address = ""
        self._watches: list[web.Request] = []
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.address = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    def watched(self) -> list[str]:
        """Return the paths of the watches that were opened and not aborted."""
        return [watch.path for watch in self._watches]

    def drop_watches(self) -> None:
        """Abort the connections of all watches."""
        for watch in self._watches:
            if watch.transport is not None:
                watch.transport.abort()
        self._watches.clear()

    def kubeconfig(self, folder: Path) -> Path:
        entry = {"name": "fake"}
        path = folder / "kubeconfig.yaml"
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "fake",
            "clusters": [{**entry, "cluster": {"server": self.address}}],
            "users": [{**entry, "user": {"token": "secret"}}],
            "contexts": [{**entry, "context": {"cluster": "fake", "user": "fake"}}],
        }
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
        return path

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.method, request.path))
        if self.before is not None:
            await self.before(request)
        faulty = self.fault(request)
        if faulty is not None:
            return faulty
        try:
            return web.json_response(await self._result(request))
        except ClusterError as error:
            return refusal(error.status, str(error))

    async def _result(self, request: web.Request) -> Any:
        last = request.path.rpartition("/")[2]
        if "/leases" in request.path:
            return await self._lease(request)
        if request.path in DISCOVERY:
            return DISCOVERY[request.path]
        if last in {"ddpjobs", *(kind.plural for kind in KINDS.values())}:
            if request.query.get("watch") == "true":
                self._watches.append(request)
                await asyncio.sleep(3600)
            return {"items": [], "metadata": {"resourceVersion": "1"}}
        raise ClusterError(f"{request.path} not found", status=404)

    async def _lease(self, request: web.Request) -> Any:
        if request.method == "GET":
            if self.leases.lease is None:
                raise ClusterError("leases not found", status=404)
            return self.leases.lease
        return self.leases.put(await request.json(), create=request.method == "POST")


def refusal(status: int, message: str, **headers: str) -> web.Response:
    return web.json_response({"message": message}, status=status, headers=headers)
