"""Elastic jobs on two real nodes: start with one, lose, drain, taint and get back nodes."""

import pytest

from tests.cluster.elastic_jobs import (
    check_costs,
    cordoned,
    elastic_job,
    node_index,
    scale,
    tainted,
    wait_for_members,
)
from tests.cluster.support import Job
from tests.cluster.test_nodes import check_no_lost_steps, operator_node
from tests.fault_player.faults import lose_node, restore_node
from tests.harness.cluster import Cluster
from tests.harness.install import eventually

pytestmark = pytest.mark.cluster


def test_elastic_job_shrinks_and_grows_with_the_available_nodes(
    cluster: Cluster, namespace: str
) -> None:
    first, second = sorted(cluster.node_names, key=lambda n: n != operator_node(cluster))
    with cordoned(cluster, second):
        job = Job.apply(cluster, namespace, elastic_job())
        status = wait_for_members(job, {node_index(job, first)})
        assert job.row()["READY"] == "1/2"
        assert status["lastResize"]["message"].endswith("not ready after 5 s")
    wait_for_members(job, {0, 1})

    there = node_index(job, second)
    with cordoned(cluster, second):
        status = wait_for_members(job, {1 - there})
        assert "is cordoned" in status["lastResize"]["message"]
        assert status["lastResize"]["repeatedUpdates"] == 0
    wait_for_members(job, {0, 1})

    scale(job, 1)
    wait_for_members(job, {0})
    scale(job, 2)
    wait_for_members(job, {0, 1})

    there = node_index(job, second)
    lose_node(cluster, second)
    try:
        status = wait_for_members(job, {1 - there})
    finally:
        restore_node(cluster, second)
    status = wait_for_members(job, {0, 1})
    check_costs(status, infrastructure=1)
    assert status["resizes"] == 8
    check_no_lost_steps(job)


@pytest.mark.sweep
@pytest.mark.parametrize("index", [0, 1], ids=["first-node", "other-node"])
def test_job_goes_on_without_a_tainted_node(cluster: Cluster, namespace: str, index: int) -> None:
    job = Job.apply(cluster, namespace, elastic_job())
    wait_for_members(job, {0, 1})
    pods = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in job.pods()}
    with tainted(cluster, pods[f"{job.name}-{index}"]):
        status = wait_for_members(job, {1 - index})
        assert "has the taint maintenance=now:NoSchedule" in status["lastResize"]["message"]
    status = wait_for_members(job, {0, 1})
    check_costs(status, infrastructure=0)
    check_no_lost_steps(job)


@pytest.mark.sweep
def test_job_leaves_a_drained_node_before_its_pod_is_evicted(
    cluster: Cluster, namespace: str
) -> None:
    job = Job.apply(cluster, namespace, elastic_job())
    wait_for_members(job, {0, 1})
    job.wait_for_checkpoint()
    node = next(n for n in cluster.node_names if n != operator_node(cluster))
    there = node_index(job, node)
    drain = ("drain", node, "--ignore-daemonsets", "--force", "--delete-emptydir-data")
    selector = f"--pod-selector=ddp-trainer.dev/job-name={job.name}"
    try:
        cluster.kubectl(*drain, selector)
        status = wait_for_members(job, {1 - there})
        assert status["lastResize"]["repeatedUpdates"] == 0
    finally:
        cluster.kubectl("uncordon", node)
    status = wait_for_members(job, {0, 1})
    check_costs(status, infrastructure=0)
    check_no_lost_steps(job)


@pytest.mark.sweep
def test_job_survives_the_loss_of_its_first_node(cluster: Cluster, namespace: str) -> None:
    job = Job.apply(cluster, namespace, elastic_job())
    wait_for_members(job, {0, 1})
    job.wait_for_checkpoint()
    (node,) = (
        p["spec"]["nodeName"] for p in job.pods() if p["metadata"]["name"] == f"{job.name}-0"
    )
    lose_node(cluster, node)
    try:
        wait_for_members(job, {1}, 180)
    finally:
        restore_node(cluster, node)
    status = wait_for_members(job, {0, 1})
    check_costs(status, infrastructure=1)
    check_no_lost_steps(job)


@pytest.mark.sweep
def test_node_that_lost_its_pods_twice_is_not_used_again(cluster: Cluster, namespace: str) -> None:
    job = Job.apply(cluster, namespace, elastic_job(shrinkAfterSeconds=1))
    node = next(n for n in cluster.node_names if n != operator_node(cluster))
    for _ in range(2):
        wait_for_members(job, {0, 1})
        there = node_index(job, node)
        pod = f"{job.name}-{there}"
        job.kubectl("delete", "pod", pod, "--grace-period=0", "--force")
        wait_for_members(job, {1 - there})
    expected = f"none: members left the Kubernetes node {node} twice within an hour"
    eventually(lambda: job.status["nextAction"].startswith(expected), expected, 60)
    attempt = job.status["attempt"]
    for _ in range(3):
        job.wait_for_checkpoint()
    assert job.status["attempt"] == attempt
