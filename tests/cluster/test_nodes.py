"""Nodes that are lost, removed or drained under a running job."""

import json

import pytest

from tests.cluster.support import Job, long_job
from tests.fault_player import judge
from tests.fault_player.record import read_lives
from tests.fault_player.strikes import bring_back, lose_node
from tests.harness.cluster import Cluster
from tests.tools.install import SYSTEM_NAMESPACE, eventually

pytestmark = pytest.mark.cluster


def operator_node(cluster: Cluster) -> str:
    form = "jsonpath={.items[0].spec.nodeName}"
    return cluster.kubectl("-n", SYSTEM_NAMESPACE, "get", "pods", "-o", form).stdout


def check_that_it_lost_nothing(job: Job) -> None:
    lives = read_lives(job.run_directory)
    assert any(life.updates for life in lives)
    assert not judge.two_gangs(lives)
    assert not judge.lost_steps(lives)


def lose_a_node(cluster: Cluster, namespace: str, *, with_operator: bool) -> Job:
    """A job that has saved, one of whose pods was on a node that is lost now."""
    there = operator_node(cluster)
    node = there if with_operator else next(n for n in cluster.node_names if n != there)
    job = Job.apply(cluster, namespace, long_job(log={"every_steps": 1}))
    job.wait_for_a_checkpoint()
    assert {pod["spec"]["nodeName"] for pod in job.pods()} == set(cluster.node_names)
    lose_node(cluster, node)
    return job


@pytest.mark.parametrize(
    "with_operator",
    [False, pytest.param(True, marks=pytest.mark.sweep)],
    ids=["worker", "worker-and-operator"],
)
def test_case_21_node_lost_and_its_pod_stuck_terminating(
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
            bring_back(cluster, name)
    check_that_it_lost_nothing(job)


@pytest.mark.sweep
def test_case_22_node_removed_from_the_cluster(cluster: Cluster, namespace: str) -> None:
    job = lose_a_node(cluster, namespace, with_operator=False)
    lost = next(n for n in cluster.node_names if n != operator_node(cluster))
    try:
        cluster.kubectl("delete", "node", lost)
        status = job.wait_for("Completed", 240)
        assert (status["restarts"], status["infrastructureRestarts"]) == (0, 1)
        assert {pod["spec"]["nodeName"] for pod in job.pods()} == {operator_node(cluster)}
    finally:
        bring_back(cluster, lost)  # It registers itself anew.
    check_that_it_lost_nothing(job)


@pytest.mark.sweep
def test_case_23_eviction_by_the_api_costs_nothing(cluster: Cluster, namespace: str) -> None:
    job = Job.apply(cluster, namespace, long_job(log={"every_steps": 1}))
    saved = job.wait_for_a_checkpoint()
    metadata = {"name": "digits-1", "namespace": namespace}
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
    path = f"/api/v1/namespaces/{namespace}/pods/digits-1/eviction"
    cluster.kubectl("create", "--raw", path, "-f", "-", input=json.dumps(eviction))
    status = job.wait_for("Completed", 180)
    counted = ("restarts", "infrastructureRestarts", "freeRestarts")
    assert [status[name] for name in counted] == [0, 0, 1]
    assert status["lastFailure"]["reason"] == "EvictionByEvictionAPI"
    assert status["resumedFromStep"] >= saved
    check_that_it_lost_nothing(job)


@pytest.mark.sweep
def test_case_62_worker_waits_for_the_first_node_without_a_restart(
    cluster: Cluster, namespace: str
) -> None:
    job = Job.apply(cluster, namespace, long_job())
    job.wait_for_a_checkpoint()
    before = job.uids()
    for name in cluster.node_names:
        cluster.kubectl("cordon", name)
    try:
        job.kubectl("delete", "pod", "digits-0", "--grace-period=0", "--force")
        # There is no pod behind the name of node 0 until a node takes it.
        eventually(lambda: "Unschedulable" in job.row("-o", "wide")["MESSAGE"], "pod 0 waits", 60)
        waits = {"node 1": ("Waiting", 2)}
        seen: dict[str, tuple[str, int]] = {}

        def waiting() -> bool:
            seen.update(
                {f"node {said.node_index}": (said.phase, said.attempt) for _, said in job.words()}
            )
            return seen == waits

        eventually(waiting, "node 1 waits in attempt 2", 60)
    finally:
        for name in cluster.node_names:
            cluster.kubectl("uncordon", name)
    status = job.wait_for("Completed", 180)
    assert status["attempt"] == 2
    assert job.uids()["digits-1"] == before["digits-1"]
