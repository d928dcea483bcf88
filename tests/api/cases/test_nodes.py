"""Tests of an operator that watches the Kubernetes nodes with the rights of the chart."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from ddp_wire.messages import AgentPhase
from tests.api.cases.conftest import OperatorLauncher
from tests.api.client import Api, eventually
from tests.api.job import Job, attempt_of
from tests.api.operator_process import OperatorProcess

pytestmark = pytest.mark.api

NODES = "/api/v1/nodes"
PRODUCT = "nvidia.com/gpu.product"
NAME = "machine-1"
"""Kubernetes node to which the fake kubelets bind the pod of node 1."""


@pytest.fixture
def watching_operator(launcher: OperatorLauncher) -> Iterator[OperatorProcess]:
    """Yield an operator that watches nodes, not started yet."""
    operator = launcher.operator("watching", settings={"watch_nodes": True})
    yield operator
    operator.kill()


@asynccontextmanager
async def created(api: Api, name: str, labels: dict[str, str]) -> AsyncIterator[str]:
    """Yield the path of a Kubernetes node without taints, and delete it at the end."""
    path = f"{NODES}/{name}"
    await api.call("POST", NODES, {"metadata": {"name": name, "labels": labels}})
    try:
        # The API server taints each new node as not ready. No kubelet removes that here.
        await api.call("PATCH", path, {"spec": {"taints": None}})
        yield path
    finally:
        await api.call("DELETE", path)


@pytest.fixture
async def node(api: Api) -> AsyncIterator[str]:
    """Yield the path of a Kubernetes node without labels."""
    async with created(api, NAME, {}) as path:
        yield path


@pytest.fixture
async def mixed_nodes(api: Api) -> AsyncIterator[None]:
    """Create the Kubernetes nodes of both pods, with different GPU products."""
    async with (
        created(api, "machine-0", {PRODUCT: "NVIDIA-L4"}),
        created(api, "machine-1", {PRODUCT: "NVIDIA-T4"}),
    ):
        yield


async def test_member_of_an_elastic_job_leaves_a_cordoned_node(
    watching_operator: OperatorProcess, api: Api, job: Job, node: str
) -> None:
    watching_operator.start()
    await watching_operator.wait_until_ready()
    await job.create(nodes=2, elastic={"minNodes": 1})

    async def has_pods() -> bool:
        return len(await job.pods()) == 2

    await eventually(has_pods, "both pods exist")
    await job.start_training(warm=True)
    await job.wait_for("Running")
    assert (await job.status())["members"] == "0-1"
    await api.call("PATCH", node, {"spec": {"unschedulable": True}})

    async def has_left() -> bool:
        status = await job.status()
        return (status["attempt"], status["members"]) == (2, "0")

    await eventually(has_left, "the member on the cordoned node has left")

    async def is_ordered() -> bool:
        pods = {pod["metadata"]["name"]: attempt_of(pod) for pod in await job.pods()}
        return pods["digits-0"] == "2:0:save"

    await eventually(is_ordered, "node 0 has the order to save and to train alone")
    assert "are not watched" not in watching_operator.log
    assert "Traceback" not in watching_operator.log


@pytest.mark.usefixtures("mixed_nodes")
async def test_pod_on_a_second_gpu_product_is_replaced_before_the_ranks_start(
    watching_operator: OperatorProcess, api: Api, job: Job
) -> None:
    watching_operator.start()
    await watching_operator.wait_until_ready()
    await job.create(nodes=2, gpusPerNode=1)
    before = await job.pods_of_attempt(1)
    waits = [job.agent_status(index, 1, AgentPhase.WAITING) for index in range(2)]
    for pod, status in zip(before, waits, strict=True):
        await job.kubelet.report_status(pod, status, ready=False)

    async def is_replaced() -> bool:
        await job.kubelet.finish_deletions()
        uids = await job.uids()
        return uids.get("digits-1") not in {None, before[1]["metadata"]["uid"]}

    await eventually(is_replaced, "the pod on the second product has a successor")
    pods = await job.pods()
    assert pods[0]["metadata"]["uid"] == before[0]["metadata"]["uid"]
    affinity = pods[1]["spec"]["affinity"]["nodeAffinity"]
    [term] = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    expected = {"key": PRODUCT, "operator": "In", "values": ["NVIDIA-L4"]}
    assert term["matchExpressions"] == [expected]
    found = await job.status()
    assert (found["attempt"], found["pods"]["gpuProduct"]) == (1, "NVIDIA-L4")
    assert found.get("infrastructureRestarts", 0) == 0
    events = await api.list("events", job.namespace)
    [mixed] = [e["message"] for e in events if e["reason"] == "MixedGpuProducts"]
    both = "digits-0 on machine-0 has NVIDIA-L4 and digits-1 on machine-1 has NVIDIA-T4"
    assert mixed.startswith(both)
