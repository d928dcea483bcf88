"""Controller whose cache and API server disagree: the server's answers decide."""

import pytest

from ddp_operator.api.job import parse_job
from ddp_operator.cluster.base import ConflictError, Key, Manifest
from ddp_operator.runtime.cache import Cache
from ddp_operator.runtime.controller import Controller
from tests.operator.direct_statuses import DirectStatuses
from tests.operator.fake_cluster import FakeCluster
from tests.operator.support import DEFAULTS, NOW, job_manifest

KEY = ("team-a", "digits")


async def test_job_status_is_written_after_one_conflict_when_the_api_server_was_restored() -> None:
    cluster, cache = FakeCluster(), Cache()
    stored = cluster.apply(job_manifest(nodes=2))
    cache.put_job({**stored, "metadata": {**stored["metadata"], "resourceVersion": "9000"}})
    controller = Controller(cluster, cache, DEFAULTS, lambda: NOW, agents=DirectStatuses(cluster))
    with pytest.raises(ConflictError):
        await controller.reconcile(KEY)
    await controller.refresh(KEY)
    await controller.reconcile(KEY)
    assert parse_job(cluster.jobs[KEY]).status.attempt == 1
    assert cache.restored.is_set()


async def test_job_deleted_while_it_is_read_stays_deleted() -> None:
    cache = Cache()

    class DeletedAfterRead(FakeCluster):
        async def get_job(self, key: Key) -> Manifest | None:
            found = await super().get_job(key)
            cache.drop_job(self.jobs[key])
            return found

    cluster = DeletedAfterRead()
    cache.put_job(cluster.apply(job_manifest(nodes=2)))
    await Controller(cluster, cache, DEFAULTS, lambda: NOW, agents=DirectStatuses(cluster)).refresh(
        KEY
    )
    assert cache.job(KEY) is None
