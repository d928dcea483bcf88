"""The fields of docs/use/placement.md under the real scheduler: 4 racks with 8 nodes each."""

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.api.client import Api, path_of
from tests.api.control_plane import ControlPlane
from tests.harness.fake_nodes import FakeNode
from tests.scheduling.job import ScheduledJob, node_of
from tests.scheduling.stage import GPUS, GPUS_PER_NODE, Stage, scheduler_cluster

pytestmark = pytest.mark.api

JSON = dict[str, Any]
RACK, PRODUCT, ZONE = "example.com/rack", "nvidia.com/gpu.product", "topology.kubernetes.io/zone"
PRODUCTS = {"a": "NVIDIA-H100", "b": "NVIDIA-H100", "c": "NVIDIA-A100", "d": "NVIDIA-A100"}
RACKS, NODES_PER_RACK = tuple(PRODUCTS), 8
BARE = "without-labels"
"""Node that no label assigns to a rack, a zone or a GPU product."""


def rack_node(rack: str, number: int) -> FakeNode:
    labels = {RACK: rack, PRODUCT: PRODUCTS[rack], ZONE: f"zone-{rack}"}
    return FakeNode(f"rack-{rack}-{number}", labels, GPUS)


@pytest.fixture(scope="module")
def control_plane() -> Iterator[ControlPlane]:
    racks = [rack_node(rack, number) for rack in RACKS for number in range(NODES_PER_RACK)]
    with scheduler_cluster([*racks, FakeNode(BARE, capacity=GPUS)]) as running:
        yield running


def rack_of(node: str) -> str:
    """Return the rack of a node, or an empty text for the node without labels."""
    return node.split("-")[1] if node.startswith("rack-") else ""


def racks_of(nodes: list[str]) -> set[str]:
    return {rack_of(node) for node in nodes}


class Blockers:
    """Pods that are not of a DDPJob and take all GPUs of their node."""

    def __init__(self, api: Api) -> None:
        self._api, self._nodes = api, set[str]()

    async def add(self, *nodes: str) -> None:
        for node in nodes:
            container = {
                "name": "c",
                "image": "none",
                "resources": {"limits": {"nvidia.com/gpu": str(GPUS_PER_NODE)}},
            }
            spec = {"nodeName": node, "containers": [container]}
            pod = {"metadata": {"name": f"blocker-{node}"}, "spec": spec}
            await self._api.call("POST", path_of("pods", "default"), pod)
            self._nodes.add(node)

    async def remove(self, *nodes: str) -> None:
        for node in nodes:
            await self._api.call("DELETE", path_of("pods", "default", f"blocker-{node}"))
            self._nodes.discard(node)

    async def clear(self) -> None:
        await self.remove(*self._nodes)


@pytest.fixture
async def blockers(stage: Stage) -> AsyncIterator[Blockers]:
    made = Blockers(stage.environment.api)
    yield made
    await made.clear()


def all_of(*racks: str) -> list[str]:
    return [f"rack-{rack}-{number}" for rack in racks for number in range(NODES_PER_RACK)]


async def placed(stage: Stage, **spec: Any) -> tuple[ScheduledJob, list[str]]:
    """Create a job that takes whole nodes, and wait until all its pods have one."""
    job = stage.job("digits")
    await job.apply(gpusPerNode=GPUS_PER_NODE, **spec)
    return job, await job.until_placed(spec["nodes"])


@pytest.mark.parametrize("product", [None, "NVIDIA-A100"])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("mode", [None, "Required", "Preferred"])
async def test_pods_run_where_all_fields_together_say(
    stage: Stage, mode: str | None, exclusive: bool, product: str | None
) -> None:
    spec: JSON = {"nodes": 4, "exclusiveNodes": exclusive}
    if mode is not None:
        spec["topology"] = {"key": RACK, "mode": mode}
    if product is not None:
        spec["gpuProduct"] = product
    job, nodes = await placed(stage, **spec)
    assert len(set(nodes)) == 4
    if mode is not None:
        assert len(racks_of(nodes)) == 1
    if product is not None:
        assert {PRODUCTS.get(rack_of(node)) for node in nodes} == {product}
    await job.until_reason("Running")


async def test_required_job_that_is_larger_than_a_rack_waits(stage: Stage) -> None:
    job = stage.job("digits")
    topology = {"key": RACK, "mode": "Required"}
    await job.apply(nodes=9, gpusPerNode=GPUS_PER_NODE, topology=topology)
    nodes = await job.until_placed(NODES_PER_RACK)
    message = await job.until_message(
        "didn't match pod affinity rules", "Insufficient nvidia.com/gpu"
    )
    assert "0/33 nodes are available" in message
    assert len(racks_of(nodes)) == 1
    assert (await job.condition())["reason"] == "Pending"


async def test_required_job_does_not_move_to_a_free_rack_until_it_is_resumed(
    stage: Stage, blockers: Blockers
) -> None:
    await blockers.add(*all_of("b", "c", "d"), *all_of("a")[2:])
    job = stage.job("digits")
    topology = {"key": RACK, "mode": "Required"}
    await job.apply(nodes=3, gpusPerNode=GPUS_PER_NODE, topology=topology)
    assert racks_of(await job.until_placed(2)) == {"a"}
    await blockers.remove(*all_of("b"))
    await job.until_message("Insufficient nvidia.com/gpu")
    assert racks_of(await job.nodes()) == {"a"}

    await job.edit(suspend=True)
    await job.until_reason("Suspended")
    await job.until(lambda _, pods: not pods, "the pods are deleted")
    await blockers.add(*all_of("a")[:2])
    await job.edit(suspend=False)
    assert racks_of(await job.until_placed(3)) == {"b"}
    await job.until_reason("Running")


async def test_node_without_the_label_gets_no_pod_of_a_required_job(stage: Stage) -> None:
    job = stage.job("digits")
    await job.apply(
        nodes=1,
        topology={"key": RACK, "mode": "Required"},
        nodeSelector={"kubernetes.io/hostname": BARE},
    )
    await job.until_message("didn't match pod affinity rules")
    assert await job.nodes() == []


@pytest.mark.parametrize("key", [RACK, ZONE])
async def test_preferred_job_fills_one_domain_before_it_uses_another(
    stage: Stage, key: str
) -> None:
    topology = {"key": key, "mode": "Preferred"}
    job, nodes = await placed(stage, nodes=NODES_PER_RACK + 2, topology=topology)
    assert sorted(Counter(map(rack_of, nodes)).values()) == [2, NODES_PER_RACK]
    await job.until_reason("Running")


@pytest.mark.parametrize("cpus", ["1", "16"])
@pytest.mark.parametrize("key", [RACK, ZONE])
async def test_preferred_job_stays_in_a_domain_whose_nodes_have_room_for_several_pods(
    stage: Stage, key: str, cpus: str
) -> None:
    job = stage.job("digits")
    await job.apply(
        nodes=16,
        resources={"requests": {"cpu": cpus}},
        topology={"key": key, "mode": "Preferred"},
    )
    nodes = await job.until_placed(16)
    assert len(racks_of(nodes)) == 1
    assert set(Counter(nodes).values()) == {2}, "the pods are not spread over the nodes"


async def test_preferred_job_uses_the_nodes_that_are_left(stage: Stage, blockers: Blockers) -> None:
    left = [f"rack-{rack}-0" for rack in RACKS]
    await blockers.add(BARE, *(node for node in all_of(*RACKS) if node not in left))
    _, nodes = await placed(stage, nodes=4, topology={"key": RACK, "mode": "Preferred"})
    assert sorted(nodes) == left


async def test_replaced_pod_waits_for_room_in_the_rack_of_the_others(
    stage: Stage, blockers: Blockers
) -> None:
    topology = {"key": RACK, "mode": "Required"}
    job, nodes = await placed(stage, nodes=4, topology=topology)
    await job.until_reason("Running")
    (rack,) = racks_of(nodes)
    free = [node for node in all_of(rack) if node not in nodes]
    await blockers.add(*free)
    lost, *others = await job.pods()
    node = node_of(lost)
    await job.api.call("DELETE", path_of("pods", stage.namespace, lost["metadata"]["name"]))
    await blockers.add(node)
    await job.until_message("didn't match pod affinity rules")
    assert sorted(await job.nodes()) == sorted(map(node_of, others))
    await blockers.remove(free[0])
    assert set(await job.until_placed(4)) == {*map(node_of, others), free[0]}
    await job.until_reason("Running")


async def test_new_pods_choose_another_rack_if_theirs_is_lost(
    stage: Stage, blockers: Blockers
) -> None:
    topology = {"key": RACK, "mode": "Required"}
    job, nodes = await placed(stage, nodes=4, topology=topology)
    await job.until_reason("Running")
    (rack,) = racks_of(nodes)
    await blockers.add(*(node for node in all_of(rack) if node not in nodes))
    for pod in await job.pods():
        await job.api.call("DELETE", path_of("pods", stage.namespace, pod["metadata"]["name"]))
    await blockers.add(*nodes)
    (other,) = racks_of(await job.until_placed(4))
    assert other != rack
    await job.until_reason("Running")


async def test_job_waits_for_its_gpu_product(stage: Stage, blockers: Blockers) -> None:
    await blockers.add(*all_of("a", "b"))
    job = stage.job("digits")
    await job.apply(nodes=1, gpusPerNode=GPUS_PER_NODE, gpuProduct="NVIDIA-H100")
    await job.until_message("didn't match Pod's node affinity/selector")
    assert await job.nodes() == []
    await blockers.remove("rack-b-3")
    assert await job.until_placed(1) == ["rack-b-3"]


async def test_new_gpu_product_moves_the_job_free_of_charge(stage: Stage) -> None:
    job, nodes = await placed(stage, nodes=2, gpuProduct="NVIDIA-H100")
    assert racks_of(nodes) <= {"a", "b"}
    await job.until_reason("Running")
    await job.edit(gpuProduct="NVIDIA-A100")

    def moved(_: JSON, pods: list[JSON]) -> bool:
        return len(pods) == 2 and all(rack_of(node_of(pod)) in {"c", "d"} for pod in pods)

    await job.until(moved, "both pods run on the other product")
    await job.until_reason("Running")
    status = await job.status()
    assert status.get("restarts", 0) == status.get("infrastructureRestarts", 0) == 0


async def test_first_pod_chooses_the_product_if_only_a_mix_is_forbidden(
    stage: Stage, blockers: Blockers
) -> None:
    free = {"rack-a-0", "rack-b-0", "rack-c-0", "rack-d-0"}
    await blockers.add(BARE, *(node for node in all_of(*RACKS) if node not in free))
    topology = {"key": PRODUCT, "mode": "Required"}
    _, nodes = await placed(stage, nodes=2, topology=topology)
    assert len({PRODUCTS[rack_of(node)] for node in nodes}) == 1


async def test_exclusive_nodes_run_no_other_worker_pod(stage: Stage) -> None:
    small = {"resources": {"requests": {"cpu": "1"}}, "nodeSelector": {RACK: "a"}}
    first, exclusive, second = stage.job("first"), stage.job("exclusive"), stage.job("second")
    await first.apply(nodes=2, **small)
    taken = set(await first.until_placed(2))
    await exclusive.apply(nodes=3, exclusiveNodes=True, **small)
    alone = set(await exclusive.until_placed(3))
    assert len(alone) == 3
    assert not alone & taken
    await second.apply(nodes=40, **small)
    assert not alone & set(await second.until_placed(40))

    late = stage.job("late")
    await late.apply(nodes=1, exclusiveNodes=True, **small)
    await late.until_message("didn't match pod anti-affinity rules")
    assert await late.nodes() == []


async def test_avoided_node_is_used_only_if_no_other_has_room(stage: Stage) -> None:
    job = stage.job("digits")
    avoided = "rack-a-3"
    await job.apply(nodes=7, gpusPerNode=GPUS_PER_NODE, nodeSelector={RACK: "a"})
    strike = {"node": avoided, "count": 2, "lastTime": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"}
    path = path_of("ddpjobs", stage.namespace, job.name, "status")
    await job.api.call("PATCH", path, {"status": {"strikes": [strike]}})
    assert avoided not in await job.until_placed(7)
    await job.edit(nodes=8)
    assert avoided in await job.until_placed(8)
    await job.until_reason("Running")
