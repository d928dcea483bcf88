"""Two jobs of a namespace that name one directory for their checkpoints."""

from typing import Any

import pytest

from tests.api.client import Api, eventually
from tests.api.job import Job
from tests.api.kubelet import FakeAgents
from tests.api.operator_process import OperatorProcess

pytestmark = pytest.mark.api

SHARED: dict[str, Any] = {
    "checkpoint": {"claimName": "shared", "path": "runs/a"},
    "cleanPodPolicy": "All",
}


async def test_second_job_starts_when_the_first_has_ended_also_after_a_restart(
    operator: OperatorProcess, api: Api, agents: FakeAgents, job: Job
) -> None:
    await job.train(**SHARED)
    second = Job(api, agents, job.namespace, "second")
    await second.create(command=["python", "train.py"], **SHARED)
    seen = await second.wait_for_message(f"in use by the DDPJob {job.name}")
    assert seen["reason"] == "Pending"
    assert (await second.condition("PodsReady"))["reason"] == "CheckpointPathInUse"
    before = await job.uids()
    operator.kill()
    operator.start()
    await operator.wait_until_ready()
    assert await job.uids() == before
    await job.complete()
    await job.wait_for("Completed")

    async def second_has_its_pods() -> bool:
        return set(await second.uids()) == {"second-0", "second-1"}

    await eventually(second_has_its_pods, "only the second job has pods")
    assert (await second.status())["pods"]["checkpointDirectory"] == "shared/runs/a"
    events = await api.list("events", job.namespace)
    assert [e["reason"] for e in events].count("CheckpointPathInUse") == 1
