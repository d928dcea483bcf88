"""Tests of how ranks end and what the job reports about it."""

from typing import Any

import pytest

from tests.cluster.support import Job, script_job
from tests.harness import pause
from tests.harness.cluster import Cluster
from tests.harness.install import REPOSITORY, VERSION, eventually

pytestmark = pytest.mark.cluster

SELF_SIGNAL_SCRIPT = "import os, signal; os.kill(os.getpid(), signal.{})"
EXIT_CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "exit-1": ("raise SystemExit(1)", {"exitCode": 1}),
    "sigkill": (SELF_SIGNAL_SCRIPT.format("SIGKILL"), {"signal": "SIGKILL"}),
    "sigsegv": (SELF_SIGNAL_SCRIPT.format("SIGSEGV"), {"signal": "SIGSEGV"}),
    "sigterm": (SELF_SIGNAL_SCRIPT.format("SIGTERM"), {"signal": "SIGTERM"}),
    "exit-2": ("raise SystemExit(2)", {"exitCode": 2, "reason": "BadInput"}),
}


def test_status_distinguishes_exit_codes_and_signals(cluster: Cluster, namespace: str) -> None:
    spec = {"nodes": 1, "procsPerNode": 1}
    jobs = {}
    for name, (script, _) in EXIT_CASES.items():
        # Exit code 2 is permanent, so it is not retried although three restarts are allowed.
        limit = 3 if name == "exit-2" else 0
        manifest = script_job(name, script, maxRestarts=limit, **spec)
        jobs[name] = Job.apply(cluster, namespace, manifest)
    for name, (_, expected) in EXIT_CASES.items():
        status = jobs[name].wait_for("Failed", 120)
        assert status["attempt"] == 1
        failure = status["lastFailure"]
        assert failure["cause"] == "Application"
        assert {"reason": "RankFailed"} | expected == {
            key: failure[key] for key in ("reason", *expected)
        }


SITE_PACKAGES = "/opt/ddp-trainer/lib/python3.11/site-packages"


def test_status_quotes_the_error_of_a_container_without_an_agent(
    cluster: Cluster, namespace: str
) -> None:
    hidden: dict[str, Any] = {
        "volumes": [{"name": "nothing", "emptyDir": {}}],
        "volumeMounts": [{"name": "nothing", "mountPath": f"{SITE_PACKAGES}/ddp_agent"}],
    }
    jobs = {}
    for name, changed in {"agentless": hidden, "pythonless": {"image": pause.IMAGE}}.items():
        spec = {"nodes": 1, "procsPerNode": 1, "maxRestarts": 0, **changed}
        jobs[name] = Job.apply(cluster, namespace, script_job(name, "", **spec))
    failures = {name: job.wait_for("Failed", 120)["lastFailure"] for name, job in jobs.items()}
    assert "ended with exit code 1: " in failures["agentless"]["message"]
    assert "No module named ddp_agent" in failures["agentless"]["message"]
    assert failures["pythonless"]["reason"] == "StartError"
    assert 'exec: "python3": executable file not found' in failures["pythonless"]["message"]
    assert {failure["cause"] for failure in failures.values()} == {"Application"}


LATE_FAILURE_SCRIPT = """
import sys, time, torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 3:
    time.sleep(3)
    sys.exit(7)
"""


@pytest.mark.sweep
def test_job_fails_when_rank_0_succeeds_and_another_rank_fails(
    cluster: Cluster, namespace: str
) -> None:
    job = Job.apply(cluster, namespace, script_job("late", LATE_FAILURE_SCRIPT, maxRestarts=1))
    status = job.wait_for("Failed", 120)
    assert (status["attempt"], status["restarts"]) == (2, 1)
    assert status["lastFailure"]["exitCode"] == 7
    assert status["lastFailure"]["rank"] == 3


SIDECAR: dict[str, Any] = {
    "name": "proxy",
    "image": f"{REPOSITORY}/trainer:{VERSION}",
    "imagePullPolicy": "Never",
    "command": ["bash", "-c", "trap 'exit 0' TERM; sleep 3600 & wait"],
    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
}


def test_sidecar_of_a_completed_job_is_ended_and_its_logs_stay(
    cluster: Cluster, namespace: str
) -> None:
    spec = {"nodes": 1, "procsPerNode": 1, "podTemplate": {"spec": {"containers": [SIDECAR]}}}
    job = Job.apply(cluster, namespace, script_job("meshed", "print('trained')", **spec))
    job.wait_for("Completed", 120)

    def ended() -> bool:
        (pod,) = job.pods()
        return all("terminated" in s["state"] for s in pod["status"]["containerStatuses"])

    eventually(ended, "the sidecar has ended", 60)
    assert "trained" in job.kubectl("logs", "meshed-0", "-c", "worker")
