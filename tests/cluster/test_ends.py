"""How ranks may end, and what the job makes of it."""

from typing import Any

import pytest

from tests.cluster.support import Job, script_job
from tests.harness.cluster import Cluster

pytestmark = pytest.mark.cluster

KILL = "import os, signal; os.kill(os.getpid(), signal.{})"
ENDS: dict[str, tuple[str, dict[str, Any]]] = {
    "exit-1": ("raise SystemExit(1)", {"exitCode": 1}),
    "sigkill": (KILL.format("SIGKILL"), {"signal": "SIGKILL"}),
    "sigsegv": (KILL.format("SIGSEGV"), {"signal": "SIGSEGV"}),
    "sigterm": (KILL.format("SIGTERM"), {"signal": "SIGTERM"}),
    "exit-2": ("raise SystemExit(2)", {"exitCode": 2, "reason": "BadInput"}),
}


def test_case_25_each_way_to_end_is_told_apart(cluster: Cluster, namespace: str) -> None:
    spec = {"nodes": 1, "procsPerNode": 1}
    jobs = {}
    for name, (script, _) in ENDS.items():
        # What can never succeed is not tried again, though three more attempts are allowed.
        limit = 3 if name == "exit-2" else 0
        manifest = script_job(name, script, maxRestarts=limit, **spec)
        jobs[name] = Job.apply(cluster, namespace, manifest)
    for name, (_, expected) in ENDS.items():
        status = jobs[name].wait_for("Failed", 120)
        assert status["attempt"] == 1
        failure = status["lastFailure"]
        assert failure["cause"] == "Application"
        assert {"reason": "RankFailed"} | expected == {
            key: failure[key] for key in ("reason", *expected)
        }


ONE_LATE = """
import sys, time, torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 3:
    time.sleep(3)
    sys.exit(7)
"""


@pytest.mark.sweep
def test_case_58_success_of_rank_0_is_not_the_jobs(cluster: Cluster, namespace: str) -> None:
    job = Job.apply(cluster, namespace, script_job("late", ONE_LATE, maxRestarts=1))
    status = job.wait_for("Failed", 120)
    assert (status["attempt"], status["restarts"]) == (2, 1)
    assert status["lastFailure"]["exitCode"] == 7
    assert status["lastFailure"]["rank"] == 3
