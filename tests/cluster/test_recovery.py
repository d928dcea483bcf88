"""Tests of recovery on two real nodes and of the cause in the status."""

import pytest

from tests.cluster.support import Job, long_job, script_job
from tests.fault_player.faults import delete_pod, kill_rank
from tests.harness.cluster import Cluster
from tests.harness.install import RELEASE, SYSTEM_NAMESPACE, eventually, operator_pods

pytestmark = pytest.mark.cluster


def check_deleted_pod_is_replaced(cluster: Cluster, namespace: str, index: int) -> None:
    job = Job.apply(cluster, namespace, long_job())
    job.wait_for_checkpoint()
    before = job.uids()
    victim = f"digits-{index}"
    delete_pod(job, victim)
    status = job.wait_for("Completed", 180)
    assert status["attempt"] == 2
    assert (status["restarts"], status["infrastructureRestarts"]) == (0, 1)
    assert status["lastFailure"]["pod"] == victim
    assert status["resumedFromStep"] > 0
    after = job.uids()
    assert {name for name, uid in after.items() if uid != before[name]} == {victim}


@pytest.mark.sweep
def test_operator_replaces_a_deleted_worker_pod(cluster: Cluster, namespace: str) -> None:
    check_deleted_pod_is_replaced(cluster, namespace, 1)


def test_operator_replaces_the_deleted_pod_of_rank_0(cluster: Cluster, namespace: str) -> None:
    check_deleted_pod_is_replaced(cluster, namespace, 0)


def test_operator_recovers_a_rank_killed_while_it_was_down(
    cluster: Cluster, namespace: str
) -> None:
    job = Job.apply(cluster, namespace, long_job())
    job.wait_for_checkpoint()
    scale = ("-n", SYSTEM_NAMESPACE, "scale", "deployment", RELEASE)
    cluster.kubectl(*scale, "--replicas=0")
    eventually(lambda: not operator_pods(cluster), "the operator is gone", 60)
    kill_rank(job, 1)
    cluster.kubectl(*scale, "--replicas=1")
    status = job.wait_for("Completed", 180)
    assert (status["attempt"], status["restarts"]) == (2, 1)
    assert status["lastFailure"]["signal"] == "SIGKILL"


MEMORY_SCRIPT = """
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
hoard = []
while dist.get_rank() == 3:
    hoard.append(bytearray(64 << 20))
dist.barrier()
"""


def test_status_reports_out_of_memory_kill(cluster: Cluster, namespace: str) -> None:
    limit = {"limits": {"memory": "1Gi"}}
    manifest = script_job("greedy", MEMORY_SCRIPT, maxRestarts=0, resources=limit)
    status = Job.apply(cluster, namespace, manifest).wait_for("Failed", 120)
    failure = status["lastFailure"]
    assert failure["reason"] == "OOMKilled"
    assert failure["pod"] == "greedy-1"
    assert "memory limit" in failure["message"]
