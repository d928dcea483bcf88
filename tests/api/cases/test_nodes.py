"""Tests of an operator that watches the Kubernetes nodes with the rights of the chart."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.api.cases.conftest import OperatorLauncher
from tests.api.client import Api, eventually
from tests.api.job import Job, attempt_of
from tests.api.operator_process import OperatorProcess

pytestmark = pytest.mark.api

NODES = "/api/v1/nodes"
NAME = "machine-1"
"""Kubernetes node to which the fake kubelets bind the pod of node 1."""


@pytest.fixture
def watching_operator(launcher: OperatorLauncher) -> Iterator[OperatorProcess]:
    """Yield an operator that watches nodes, not started yet."""
    operator = launcher.operator("watching", settings={"watch_nodes": True})
    yield operator
    operator.kill()


@pytest.fixture
async def node(api: Api) -> AsyncIterator[str]:
    """Yield the path of a Kubernetes node without taints, and delete it at the end."""
    path = f"{NODES}/{NAME}"
    await api.call("POST", NODES, {"metadata": {"name": NAME}})
    try:
        # The API server taints each new node as not ready. No kubelet removes that here.
        await api.call("PATCH", path, {"spec": {"taints": None}})
        yield path
    finally:
        await api.call("DELETE", path)


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
