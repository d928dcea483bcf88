"""Recovery on two real nodes: what is lost comes back, and the status says what it was."""

import pytest

from tests.cluster.support import Job, long_job, script_job
from tests.fault_player.strikes import delete_pod, kill_rank
from tests.harness.cluster import Cluster
from tests.tools.install import RELEASE, SYSTEM_NAMESPACE, eventually

pytestmark = pytest.mark.cluster


def check_that_a_deleted_pod_is_replaced(cluster: Cluster, namespace: str, index: int) -> None:
    job = Job.apply(cluster, namespace, long_job())
    job.wait_for_a_checkpoint()
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
def test_case_18_deleted_worker_is_replaced(cluster: Cluster, namespace: str) -> None:
    check_that_a_deleted_pod_is_replaced(cluster, namespace, 1)


def test_case_19_deleted_rank_0_is_replaced(cluster: Cluster, namespace: str) -> None:
    check_that_a_deleted_pod_is_replaced(cluster, namespace, 0)


def test_what_happened_while_the_operator_was_away_is_dealt_with_when_it_is_back(
    cluster: Cluster, namespace: str
) -> None:
    job = Job.apply(cluster, namespace, long_job())
    job.wait_for_a_checkpoint()
    scale = ("-n", SYSTEM_NAMESPACE, "scale", "deployment", RELEASE)
    cluster.kubectl(*scale, "--replicas=0")
    gone = ("-n", SYSTEM_NAMESPACE, "get", "pods", "-o", "name")
    eventually(lambda: not cluster.kubectl(*gone).stdout, "operator gone", 60)
    kill_rank(job, 1)
    cluster.kubectl(*scale, "--replicas=1")
    status = job.wait_for("Completed", 180)
    assert (status["attempt"], status["restarts"]) == (2, 1)
    assert status["lastFailure"]["signal"] == "SIGKILL"


GREEDY = """
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
hoard = []
while dist.get_rank() == 3:
    hoard.append(bytearray(64 << 20))
dist.barrier()
"""


def test_case_24_rank_out_of_memory_is_named_with_the_reason(
    cluster: Cluster, namespace: str
) -> None:
    limit = {"limits": {"memory": "1Gi"}}
    manifest = script_job("greedy", GREEDY, maxRestarts=0, resources=limit)
    status = Job.apply(cluster, namespace, manifest).wait_for("Failed", 120)
    failure = status["lastFailure"]
    assert failure["reason"] == "OOMKilled"
    assert failure["pod"] == "greedy-1"
    assert "memory limit" in failure["message"]
