"""Pods of one job train on one GPU product: a mix is found and undone before the ranks start."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from ddp_operator.api.job import DDPJob
from ddp_operator.builders.affinity import NODES
from ddp_operator.reconcile.decide import decide
from ddp_operator.reconcile.node_view import NodeView
from ddp_operator.reconcile.plan import CreatePod, DeletePod, Plan, SetAttempt
from ddp_operator.reconcile.pod_view import PodView
from ddp_wire.messages import AgentStatus
from tests.operator.builders.test_placement import required_label
from tests.operator.elastic_support import elastic_job, members, training, waiting
from tests.operator.support import (
    DEFAULTS,
    active_job,
    after,
    agent_status,
    new_job,
    only,
    pod,
    summary,
    with_status,
    world,
)

SLOW, FAST = "NVIDIA-L4", "NVIDIA-H100-80GB-HBM3"


def gpu_job(nodes: int = 3, **more: Any) -> DDPJob:
    return active_job(nodes=nodes, gpusPerNode=1, formed=False, **more)


def decided(
    job: DDPJob,
    pods: Iterable[PodView],
    products: Iterable[str],
    statuses: Mapping[int, AgentStatus] | None = None,
    seconds: float = 0.0,
) -> Plan:
    """Return the plan if the Kubernetes nodes machine-0, machine-1 … have these products."""
    views = {
        f"machine-{i}": NodeView(f"machine-{i}", gpu_product=p) for i, p in enumerate(products)
    }
    seen = world(job, pods, statuses=statuses, now=after(seconds))
    return decide(replace(seen, kubernetes_nodes=views), DEFAULTS)


def starting(job: DDPJob, nodes: Iterable[int], **fields: Any) -> list[PodView]:
    return [pod(job, index, ready=False, **fields) for index in nodes]


def deleted(plan: Plan) -> list[str]:
    return [action.name for action in only(plan.actions, DeletePod)]


def chosen(plan: Plan) -> str | None:
    return plan.status.pods.gpu_product if plan.status.pods is not None else None


def mixes(plan: Plan) -> list[str]:
    return [event.message for event in plan.events if event.reason == "MixedGpuProducts"]


def test_pod_on_another_product_is_replaced_before_the_ranks_start() -> None:
    job = gpu_job()
    plan = decided(job, starting(job, range(3)), (FAST, SLOW, FAST))
    assert (chosen(plan), deleted(plan)) == (FAST, ["digits-1"])
    [sentence] = mixes(plan)
    assert sentence == (
        f"digits-0 on machine-0 has {FAST} and digits-1 on machine-1 has {SLOW}, but all pods of a"
        " job must have one GPU product: the operator replaces digits-1 now by pods that require"
        f" {FAST}; set spec.gpuProduct to choose the product"
    )
    assert plan.status.attempt == 1, "nothing has started, so nothing ends"


def test_successor_requires_the_product_and_says_so_while_it_waits() -> None:
    job = gpu_job()
    first = decided(job, starting(job, range(3)), (FAST, SLOW, FAST))
    job = with_status(job, pods=first.status.pods)
    plan = decided(job, starting(job, (0, 2)), (FAST, SLOW, FAST))
    [created] = only(plan.actions, CreatePod)
    affinity = created.manifest["spec"]["affinity"]
    assert affinity == {NODES: required_label("nvidia.com/gpu.product", FAST)}
    assert not mixes(plan), "one Event per choice"
    waits = pod(job, 1, ready=False, phase="Pending", node=None, waiting="Unschedulable: 0/3 nodes")
    later = decided(job, [*starting(job, (0, 2)), waits], (FAST, SLOW, FAST))
    _, reason, message = summary(later.status)
    assert (reason, later.actions) == ("Pending", ())
    assert message == (
        "digits-1 waits: Unschedulable: 0/3 nodes; all pods of the job require"
        f" {FAST}, see spec.gpuProduct"
    )


def test_of_equally_frequent_products_the_first_pod_decides() -> None:
    job = gpu_job(2)
    plan = decided(job, starting(job, range(2)), (SLOW, FAST))
    assert (chosen(plan), deleted(plan)) == (SLOW, ["digits-1"])


@pytest.mark.parametrize(
    ("spec", "products"),
    [
        ({"gpusPerNode": 1}, (FAST, FAST, FAST)),
        ({"gpusPerNode": 1}, (FAST, "", FAST)),
        ({"gpusPerNode": 1}, ()),
        ({"gpusPerNode": 1, "gpuProduct": FAST}, (FAST, SLOW, FAST)),
        ({}, (FAST, SLOW, FAST)),
    ],
    ids=["one product", "a node without label", "no right", "the user chose", "no GPUs"],
)
def test_pods_that_may_stay_are_unchanged(spec: dict[str, Any], products: tuple[str, ...]) -> None:
    job = active_job(nodes=3, formed=False, **spec)
    plan = decided(job, starting(job, range(3)), products)
    assert (chosen(plan), deleted(plan), mixes(plan)) == (None, [], [])


def test_members_that_train_are_replaced_with_the_next_attempt_only() -> None:
    """The operator may have been away while the ranks started."""
    job = active_job(nodes=2, gpusPerNode=1)
    trains = {index: training(job, index) for index in range(2)}
    plan = decided(job, [pod(job, 0), pod(job, 1)], (FAST, SLOW), trains)
    assert (chosen(plan), deleted(plan)) == (FAST, [])
    assert "the operator replaces digits-1 before the next attempt" in mixes(plan)[0]
    next_job = gpu_job(2, attempt=2, status={"pods": plan.status.pods})
    old = [pod(next_job, index, ready=False, attempt="1") for index in range(2)]
    later = decided(next_job, old, (FAST, SLOW))
    assert deleted(later) == ["digits-1"]
    assert [order.name for order in only(later.actions, SetAttempt)] == ["digits-0"]


def test_elastic_job_grows_onto_its_own_product_alone() -> None:
    job = elastic_job(3, members="0-1", gpusPerNode=1)
    pods = [pod(job, 0), pod(job, 1), pod(job, 2, ready=False)]
    statuses = {0: training(job, 0), 1: training(job, 1), 2: waiting(job, 2)}
    same = decided(job, pods, (FAST, FAST, FAST), statuses, seconds=301)
    other = decided(job, pods, (FAST, FAST, SLOW), statuses, seconds=301)
    assert (members(same), members(other)) == ({0, 1, 2}, {0, 1})
    assert (chosen(other), deleted(other)) == (FAST, ["digits-2"])
    assert "replaces digits-2 now" in mixes(other)[0]


def test_new_spec_chooses_the_product_again() -> None:
    job = gpu_job(2)
    recorded = job.status.pods.model_copy(update={"gpu_product": SLOW}) if job.status.pods else None
    edited = new_job(nodes=2, gpusPerNode=1, config={"epochs": 3})
    edited = edited.model_copy(update={"status": with_status(job, pods=recorded).status})
    assert chosen(decided(edited, starting(job, range(2)), (SLOW, SLOW))) is None


def test_fault_of_the_attempt_comes_before_the_mix() -> None:
    job = gpu_job(2)
    statuses = {0: agent_status(0, phase="Waiting"), 1: agent_status(1, phase="Waiting")}
    going = pod(job, 1, ready=False, deleting=True)
    plan = decided(job, [*starting(job, (0,)), going], (FAST, SLOW), statuses)
    assert (plan.status.attempt, plan.status.infrastructure_restarts) == (1, 0)
    assert plan.status.last_failure is None
