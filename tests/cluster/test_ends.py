"""Tests of how ranks end and what the job reports about it."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.support import Job, script_job
from tests.harness import install, pause
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


SITE_PACKAGES = "/opt/ddp-trainer/lib/python3.11/site-packages"
WITHOUT_AGENT: dict[str, dict[str, Any]] = {
    "agentless": {
        "volumes": [{"name": "nothing", "emptyDir": {}}],
        "volumeMounts": [{"name": "nothing", "mountPath": f"{SITE_PACKAGES}/ddp_agent"}],
    },
    "pythonless": {"image": pause.IMAGE},
}

SIDECAR: dict[str, Any] = {
    "name": "proxy",
    "image": f"{REPOSITORY}/trainer:{VERSION}",
    "imagePullPolicy": "Never",
    "command": ["bash", "-c", "trap 'exit 0' TERM; sleep 3600 & wait"],
    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
}


@pytest.fixture(scope="module")
def jobs(cluster: Cluster) -> Iterator[dict[str, Job]]:
    """Yield jobs that end soon, by name. All start at once, because each start mostly waits."""
    one = {"nodes": 1, "procsPerNode": 1}
    # Exit code 2 is permanent, so it is not retried although three restarts are allowed.
    manifests = [
        script_job(name, script, maxRestarts=3 if name == "exit-2" else 0, **one)
        for name, (script, _) in EXIT_CASES.items()
    ]
    manifests += [
        script_job(name, "", maxRestarts=0, **one, **changed)
        for name, changed in WITHOUT_AGENT.items()
    ]
    sidecar = {"podTemplate": {"spec": {"containers": [SIDECAR]}}}
    manifests += [
        script_job("failing", "raise ValueError('no data under /data')", maxRestarts=0),
        script_job("meshed", "print('trained')", **one, **sidecar),
    ]
    install.create_namespace(cluster, "ends")
    yield {
        manifest["metadata"]["name"]: Job.apply(cluster, "ends", manifest) for manifest in manifests
    }
    cluster.kubectl("-n", "ends", "delete", "ddpjobs", "--all", "--wait=false")


def test_status_distinguishes_exit_codes_and_signals(jobs: dict[str, Job]) -> None:
    for name, (_, expected) in EXIT_CASES.items():
        status = jobs[name].wait_for("Failed", 120)
        assert status["attempt"] == 1
        failure = status["lastFailure"]
        assert failure["cause"] == "Application"
        assert {"reason": "RankFailed"} | expected == {
            key: failure[key] for key in ("reason", *expected)
        }


def test_status_quotes_the_error_of_a_container_without_an_agent(jobs: dict[str, Job]) -> None:
    failures = {name: jobs[name].wait_for("Failed", 120)["lastFailure"] for name in WITHOUT_AGENT}
    assert "ended with exit code 1: " in failures["agentless"]["message"]
    assert "No module named ddp_agent" in failures["agentless"]["message"]
    assert failures["pythonless"]["reason"] == "StartError"
    assert 'exec: "python3": executable file not found' in failures["pythonless"]["message"]
    assert {failure["cause"] for failure in failures.values()} == {"Application"}


def test_failing_script_fails_the_job_with_its_last_traceback_line(jobs: dict[str, Job]) -> None:
    job = jobs["failing"]
    status = job.wait_for("Failed", 120)
    assert "ValueError: no data under /data" in job.row("-o", "wide")["MESSAGE"]
    assert status["lastFailure"]["exitCode"] == 1
    assert "Traceback" in status["lastFailure"]["traceback"]
    # The pods end to free their nodes, and remain so that a user can read their logs.
    ended = {"Succeeded", "Failed"}
    eventually(lambda: {p["status"]["phase"] for p in job.pods()} <= ended, "pods end", 60)
    assert len(job.pods()) == 2


def test_sidecar_of_a_completed_job_is_ended_and_its_logs_stay(jobs: dict[str, Job]) -> None:
    job = jobs["meshed"]
    job.wait_for("Completed", 120)

    def ended() -> bool:
        (pod,) = job.pods()
        return all("terminated" in s["state"] for s in pod["status"]["containerStatuses"])

    eventually(ended, "the sidecar has ended", 60)
    assert "trained" in job.kubectl("logs", "meshed-0", "-c", "worker")


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
