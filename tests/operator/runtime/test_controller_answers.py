"""Controller whose cache and API server disagree: the server's answers decide."""

import pytest

from ddp_operator.api.job import DDPJob, parse_job
from ddp_operator.cluster.base import ConflictError, Key, Manifest
from ddp_operator.runtime.cache import Cache
from ddp_operator.runtime.controller import Controller
from ddp_operator.runtime.finished_jobs import FinishedJobs
from tests.operator.direct_statuses import DirectStatuses
from tests.operator.fake_cluster import FakeCluster
from tests.operator.support import DEFAULTS, NOW, job_manifest

KEY = ("team-a", "digits")
ENDED = {
    "attempt": 1,
    "completionTime": NOW.isoformat(),
    "conditions": [
        {
            "type": "Succeeded",
            "status": "True",
            "reason": "Completed",
            "message": "",
            "lastTransitionTime": NOW.isoformat(),
        }
    ],
}
"""Status of a job that has completed."""


class RecordedUids(FinishedJobs):
    """List of finished jobs that only notes the uids of the jobs."""

    def __init__(self) -> None:
        self.uids: list[str] = []

    async def record(self, job: DDPJob) -> bool:
        self.uids.append(job.metadata.uid)
        return True


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


async def test_job_with_the_name_of_a_deleted_one_inherits_nothing_from_it() -> None:
    cluster, cache, finished = FakeCluster(), Cache(), RecordedUids()
    agents = DirectStatuses(cluster)
    controller = Controller(
        cluster, cache, DEFAULTS, lambda: NOW, agents=agents, finished_jobs=finished
    )
    for uid in ("uid-1", "uid-2"):
        cluster.jobs.clear()
        job = job_manifest(nodes=2)
        cluster.apply(job | {"metadata": {**job["metadata"], "uid": uid}})
        cache.put_job(await cluster.write_status(cluster.jobs[KEY], ENDED))
        await controller.reconcile(KEY)
    assert finished.uids == ["uid-1", "uid-2"]


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
