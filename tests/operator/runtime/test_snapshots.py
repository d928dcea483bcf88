"""Snapshots of several namespaces; the operator may not read some of them."""

import logging

import pytest

from ddp_operator.cluster.base import ClusterError, ClusterSnapshot, Listing
from ddp_operator.runtime.cache import Cache
from ddp_operator.runtime.queue import WorkQueue
from ddp_operator.runtime.snapshots import Snapshots
from ddp_operator.runtime.workers import WorkerActivity, first_sync
from tests.operator.support import job_manifest

FORBIDDEN = ClusterError("pods is forbidden: no RoleBinding", status=403)
UNAVAILABLE = ClusterError("etcd is not available", status=503)


class Namespaces:
    """API server with one job in each namespace, unless the namespace has an error."""

    def __init__(self, **errors: ClusterError) -> None:
        self.errors = errors
        self.activity = WorkerActivity()
        self.snapshots = Snapshots(self.snapshot, ("a", "b"), self.activity)

    async def snapshot(self, namespace: str | None) -> ClusterSnapshot:
        assert namespace is not None
        if namespace in self.errors:
            raise self.errors[namespace]
        job = job_manifest()
        job["metadata"] |= {"namespace": namespace, "resourceVersion": "5"}
        empty = Listing((), 7)
        return ClusterSnapshot(Listing((job,), 7), {"Pod": empty})

    async def served(self) -> list[str]:
        """Return the namespaces whose jobs a snapshot has."""
        found = await self.snapshots.take()
        return [job["metadata"]["namespace"] for job in found.jobs.items]


async def test_namespace_without_rights_does_not_stop_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    server = Namespaces(b=FORBIDDEN)
    cache: Cache = Cache()
    await first_sync(server.snapshots.take, cache, WorkQueue(), server.activity)
    assert server.activity.synced
    assert cache.keys() == [("a", "digits")]
    assert server.activity.unserved_namespaces == {"b": str(FORBIDDEN)}
    assert await server.served() == ["a"]
    server.errors.clear()
    assert await server.served() == ["a", "b"]
    assert server.activity.unserved_namespaces == {}
    assert [record.message for record in caplog.records] == [
        f"the namespace b is not served: {FORBIDDEN}",
        "the namespace b is served again",
    ]


async def test_snapshot_fails_if_no_namespace_permits_it() -> None:
    with pytest.raises(ClusterError, match="no RoleBinding"):
        await Namespaces(a=FORBIDDEN, b=FORBIDDEN).served()


async def test_snapshot_fails_while_the_api_server_is_not_available() -> None:
    """A snapshot without the namespace would drop its jobs from the cache."""
    with pytest.raises(ClusterError, match="etcd"):
        await Namespaces(b=UNAVAILABLE).served()
