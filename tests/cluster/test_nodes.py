"""Tests of nodes that are lost, removed or drained under a running job."""

import json

import pytest

from tests.cluster.support import EVERY_UPDATE, Job, long_job
from tests.fault_player import run_checks
from tests.fault_player.faults import lose_node, restore_node
from tests.fault_player.record import read_attempts
from tests.harness.cluster import Cluster
from tests.harness.install import SYSTEM_NAMESPACE, eventually

pytestmark = pytest.mark.cluster


def operator_node(cluster: Cluster) -> str:
    form = "jsonpath={.items[0].spec.nodeName}"
    return cluster.kubectl("-n", SYSTEM_NAMESPACE, "get", "pods", "-o", form).stdout


def check_no_lost_steps(job: Job) -> None:
    attempts = read_attempts(job.run_directory)
    assert any(attempt.updates for attempt in attempts)
    assert not run_checks.overlapping_attempts(attempts)
    assert not run_checks.lost_steps(attempts)


def lose_a_node(cluster: Cluster, namespace: str, *, with_operator: bool) -> Job:
    """Return a job that has saved a checkpoint and lost one of its pods with its node."""
    there = operator_node(cluster)
    node = there if with_operator else next(n for n in cluster.node_names if n != there)
    job = Job.apply(cluster, namespace, long_job(log=EVERY_UPDATE))
    job.wait_for_checkpoint()
    assert {pod["spec"]["nodeName"] for pod in job.pods()} == set(cluster.node_names)
    lose_node(cluster, node)
    return job


@pytest.mark.parametrize(
    "with_operator",
    [False, pytest.param(True, marks=pytest.mark.sweep)],
    ids=["worker", "worker-and-operator"],
)
def test_job_recovers_from_a_lost_node_whose_pod_stays_terminating(
    cluster: Cluster, namespace: str, *, with_operator: bool
) -> None:
    job = lose_a_node(cluster, namespace, with_operator=with_operator)
    try:
        status = job.wait_for("Completed", 180)
        assert status["attempt"] == 2
        assert (status["restarts"], status["infrastructureRestarts"]) == (0, 1)
        assert status["lastFailure"]["reason"] == "DeletionByTaintManager"
        assert len({pod["spec"]["nodeName"] for pod in job.pods()}) == 1
    finally:
        for name in cluster.node_names:
            restore_node(cluster, name)
    check_no_lost_steps(job)


@pytest.mark.sweep
def test_job_recovers_from_a_node_removed_from_the_cluster(
    cluster: Cluster, namespace: str
) -> None:
    job = lose_a_node(cluster, namespace, with_operator=False)
    lost = next(n for n in cluster.node_names if n != operator_node(cluster))
    try:
        cluster.kubectl("delete", "node", lost)
        status = job.wait_for("Completed", 240)
        assert (status["restarts"], status["infrastructureRestarts"]) == (0, 1)
        assert {pod["spec"]["nodeName"] for pod in job.pods()} == {operator_node(cluster)}
    finally:
        restore_node(cluster, lost)  # The kubelet registers its node again.
    check_no_lost_steps(job)


@pytest.mark.sweep
def test_eviction_by_the_api_uses_no_budget(cluster: Cluster, namespace: str) -> None:
    job = Job.apply(cluster, namespace, long_job(log=EVERY_UPDATE))
    saved = job.wait_for_checkpoint()
    metadata = {"name": "digits-1", "namespace": namespace}
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
    path = f"/api/v1/namespaces/{namespace}/pods/digits-1/eviction"
    cluster.kubectl("create", "--raw", path, "-f", "-", input=json.dumps(eviction))
    status = job.wait_for("Completed", 180)
    counted = ("restarts", "infrastructureRestarts", "freeRestarts")
    assert [status[name] for name in counted] == [0, 0, 1]
    assert status["lastFailure"]["reason"] == "EvictionByEvictionAPI"
    assert status["resumedFromStep"] >= saved
    check_no_lost_steps(job)


@pytest.mark.sweep
def test_worker_waits_for_node_0_without_a_restart(cluster: Cluster, namespace: str) -> None:
    job = Job.apply(cluster, namespace, long_job())
    job.wait_for_checkpoint()
    before = job.uids()
    for name in cluster.node_names:
        cluster.kubectl("cordon", name)
    try:
        job.kubectl("delete", "pod", "digits-0", "--grace-period=0", "--force")
        # The DNS name of node 0 has no pod until the scheduler places one.
        eventually(lambda: "Unschedulable" in job.row("-o", "wide")["MESSAGE"], "pod 0 waits", 60)
        waits = {"node 1": ("Waiting", 2)}
        seen: dict[str, tuple[str, int]] = {}

        def waiting() -> bool:
            seen.update(
                {
                    f"node {agent.node_index}": (agent.phase, agent.attempt)
                    for _, agent in job.agent_statuses()
                }
            )
            return seen == waits

        eventually(waiting, "node 1 waits in attempt 2", 60)
    finally:
        for name in cluster.node_names:
            cluster.kubectl("uncordon", name)
    status = job.wait_for("Completed", 180)
    assert status["attempt"] == 2
    assert job.uids()["digits-1"] == before["digits-1"]
