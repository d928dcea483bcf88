"""The writer of the lists of finished jobs: its requests, and what it does when one is refused."""

import asyncio
import logging

import pytest

from ddp_operator.api.finished import CONFIG_MAP, read_finished
from ddp_operator.api.job import DDPJob
from ddp_operator.cluster.base import ClusterError
from ddp_operator.limits import FINISHED_JOBS
from ddp_operator.runtime.finished_jobs import FinishedJobs
from tests.operator.fake_cluster import FakeCluster
from tests.operator.support import after, finished_job, with_status

PATCH = f"patch ConfigMap {CONFIG_MAP}"


def ended_job(number: int, namespace: str = "team-a") -> DDPJob:
    job = with_status(finished_job(succeeded=True), completion_time=after(number))
    changed = {"name": f"job-{number}", "uid": f"uid-{number}", "namespace": namespace}
    return job.model_copy(update={"metadata": job.metadata.model_copy(update=changed)})


def names(cluster: FakeCluster, namespace: str = "team-a") -> list[str]:
    return [
        one.name for one in read_finished(cluster.config_maps.stored.get((namespace, CONFIG_MAP)))
    ]


async def test_each_end_costs_one_read_and_one_write() -> None:
    cluster = FakeCluster()
    writer = FinishedJobs(cluster.config_maps)
    for job in (ended_job(1), ended_job(1), ended_job(2)):
        assert await writer.record(job)
    assert names(cluster) == ["job-2", "job-1"]
    assert (cluster.writes, len(cluster.config_maps.reads)) == ([PATCH] * 2, 2)


async def test_restarted_operator_reads_one_list_per_namespace_and_writes_nothing() -> None:
    cluster = FakeCluster()
    jobs = [ended_job(n, namespace) for n in range(3) for namespace in ("team-a", "team-b")]
    for writer in (FinishedJobs(cluster.config_maps), FinishedJobs(cluster.config_maps)):
        before = len(cluster.writes), len(cluster.config_maps.reads)
        for job in jobs:
            assert await writer.record(job)
    assert (len(cluster.writes) - before[0], len(cluster.config_maps.reads) - before[1]) == (0, 2)


async def test_jobs_beyond_the_limit_cost_a_restarted_operator_nothing() -> None:
    cluster = FakeCluster()
    jobs = [ended_job(number) for number in range(FINISHED_JOBS + 20)]
    for job in jobs:
        await FinishedJobs(cluster.config_maps).record(job)
    writes, writer = len(cluster.writes), FinishedJobs(cluster.config_maps)
    await asyncio.gather(*map(writer.record, jobs))
    assert len(cluster.writes) == writes
    assert names(cluster)[-1] == "job-20"


async def test_jobs_that_end_together_are_all_in_the_list() -> None:
    cluster = FakeCluster()
    writer = FinishedJobs(cluster.config_maps)
    await asyncio.gather(*(writer.record(ended_job(number)) for number in range(30)))
    assert len(names(cluster)) == 30


async def test_refused_write_is_logged_once_and_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = FakeCluster()
    cluster.refusals = {"patch ConfigMap": ClusterError("configmaps is forbidden", status=403)}
    writer = FinishedJobs(cluster.config_maps)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert not await writer.record(ended_job(1))
    sentence = f"{CONFIG_MAP} of team-a was not written: configmaps is forbidden"
    assert caplog.messages == [sentence]
    cluster.refusals = {}
    assert await writer.record(ended_job(1))
    assert names(cluster) == ["job-1"]


async def test_list_that_users_deleted_begins_again() -> None:
    cluster = FakeCluster()
    writer = FinishedJobs(cluster.config_maps)
    await writer.record(ended_job(1))
    cluster.config_maps.stored.clear()
    await writer.record(ended_job(2))
    assert names(cluster) == ["job-2"]
