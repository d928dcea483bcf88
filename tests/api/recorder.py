"""Record every change of jobs and their children from watches."""

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.api.client import Api, eventually, path_of
from tests.api.history import Change

JSON = dict[str, Any]
_RESOURCES = {
    "ddpjobs": "/apis/ddp-trainer.dev/v1alpha1/ddpjobs",
    "pods": "/api/v1/pods",
    "services": "/api/v1/services",
    "networkpolicies": "/apis/networking.k8s.io/v1/networkpolicies",
}


class Recorder:
    """Changes by namespace."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._changes: dict[str, list[Change]] = defaultdict(list)
        self._present: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)

    @classmethod
    @asynccontextmanager
    async def recording(cls, api: Api) -> AsyncIterator["Recorder"]:
        """Yield a recorder of all changes from now on."""
        recorder = cls(api)
        starts = [(await api.call("GET", path))["metadata"] for path in _RESOURCES.values()]
        watches = [
            asyncio.ensure_future(recorder._watch(resource, start["resourceVersion"]))
            for resource, start in zip(_RESOURCES, starts, strict=True)
        ]
        try:
            yield recorder
        finally:
            ended = [watch for watch in watches if watch.done()]
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, return_exceptions=True)
            assert not ended, "a watch ended early, so the record is incomplete"

    async def take(self, namespace: str) -> list[Change]:
        """Return all changes in a namespace in which no more changes happen, and forget them."""
        for resource in _RESOURCES:
            listed = await self._api.list(resource, namespace)
            meta = [item["metadata"] for item in listed]
            now = {m["name"]: m["resourceVersion"] for m in meta}

            async def caught_up(resource: str = resource, now: JSON = now) -> bool:
                return self._present[resource, namespace] == now

            await eventually(caught_up, f"the watch of {path_of(resource, namespace)} catches up")
            self._present.pop((resource, namespace))
        # Resource versions of all kinds come from one counter.
        return sorted(self._changes.pop(namespace, []), key=lambda change: change.version)

    async def _watch(self, resource: str, version: str) -> None:
        query = {"watch": "true", "resourceVersion": version, "timeoutSeconds": "7200"}
        async for line in self._api.stream(_RESOURCES[resource], query):
            event = json.loads(line)
            change = Change(event["type"], resource, event["object"])
            assert change.type != "ERROR", event["object"]
            metadata = event["object"]["metadata"]
            namespace = metadata["namespace"]
            self._changes[namespace].append(change)
            present = self._present[resource, namespace]
            present.pop(change.name, None)
            if change.type != "DELETED":
                present[change.name] = metadata["resourceVersion"]
