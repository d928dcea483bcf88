"""An elastic job on four real nodes: a late node, two losses at once, a new size, a taint."""

import pytest

from tests.cluster.elastic_jobs import (
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

pytestmark = [pytest.mark.cluster, pytest.mark.sweep, pytest.mark.timeout(900)]

ALL = {0, 1, 2, 3}


def test_job_follows_the_number_of_its_nodes(cluster: Cluster, namespace: str) -> None:
    manifest = elastic_job()
    manifest["spec"] |= {"nodes": 4, "procsPerNode": 1}
    late, *others = sorted(cluster.node_names, key=lambda n: n == operator_node(cluster))
    with cordoned(cluster, late):
        job = Job.apply(cluster, namespace, manifest)
        without = ALL - {wait_for_pending_node(job, others)}
        wait_for_members(job, without)
        assert job.row()["READY"] == "3/4"
    wait_for_members(job, ALL)

    lost = [late, others[0]]
    there = {node_index(job, node) for node in lost}
    for node in lost:
        lose_node(cluster, node)
    try:
        wait_for_members(job, ALL - there, 240)
    finally:
        for node in lost:
            restore_node(cluster, node)
    status = wait_for_members(job, ALL, 240)
    assert status["restarts"] == 0
    assert 1 <= status["infrastructureRestarts"] <= len(lost)

    scale(job, 2)
    wait_for_members(job, {0, 1})
    scale(job, 4)
    wait_for_members(job, ALL, 240)

    there = {node_index(job, others[0])}
    with tainted(cluster, others[0]):
        status = wait_for_members(job, ALL - there, 240)
        assert status["lastResize"]["repeatedUpdates"] == 0
    wait_for_members(job, ALL, 240)
    check_no_lost_steps(job)


def wait_for_pending_node(job: Job, nodes: list[str]) -> int:
    """Return the node of the job whose pod has no Kubernetes node, once all others have one."""
    placed = {node_index(job, node) for node in nodes}
    (left,) = ALL - placed
    return left
