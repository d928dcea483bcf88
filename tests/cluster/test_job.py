"""Tests of a job from creation to completion on two real nodes, as a user sees it."""

import collections
import json

import pytest

from tests.cluster.support import (
    STEADY_SCRIPT,
    Job,
    long_job,
    operator_requests,
    sample,
    script_job,
)
from tests.fault_player.faults import kill_rank
from tests.harness.cluster import Cluster
from tests.harness.install import eventually

pytestmark = pytest.mark.cluster


def test_sample_job_completes_and_leaves_no_objects(cluster: Cluster, namespace: str) -> None:
    job = Job.apply(cluster, namespace, sample())
    seen: dict[str, dict[str, str]] = {}

    def completed() -> bool:
        row = job.row("-o", "wide")
        seen.setdefault(row["STATUS"], row)
        if row["STATUS"] == "Running" and "/120" in row["PROGRESS"]:
            seen["Progress"] = row
        return row["STATUS"] in {"Completed", "Failed"}

    eventually(completed, "the job ends", 240)
    last = job.row("-o", "wide")
    assert last["STATUS"] == "Completed", job.kubectl("describe", "ddpjob", job.name)
    assert last["PROGRESS"] == "120/120 (100%)"
    assert last["CHECKPOINT"] == "120"
    assert last["MESSAGE"] == "all 4 ranks of attempt 1 exited with code 0"
    assert seen["Running"]["READY"] == "2/2"
    assert seen["Progress"]["ATTEMPT"] == "1"
    assert seen["Progress"]["AGE"]
    assert float(job.status["progress"]["metrics"]["accuracy"]) >= 0.97
    pods = job.pods()
    assert {pod["spec"]["nodeName"] for pod in pods} == set(cluster.node_names)
    log = job.kubectl("logs", pods[0]["metadata"]["name"])
    assert "torchrun --nnodes=2" in log
    # torchrun prefixes each line with the rank.
    (line,) = [line for line in log.splitlines() if '"event": "start"' in line]
    start = json.loads(line[line.index("{") :])
    assert start["places"] == [
        {"ranks": ranks, "host": node.name, "zone": node.zone}
        for ranks, pod in zip(("0-1", "2-3"), pods, strict=True)
        for node in cluster.nodes
        if node.name == pod["spec"]["nodeName"]
    ]

    made = collections.Counter(
        (entry["verb"], entry["objectRef"]["resource"])
        for entry in operator_requests(cluster, namespace)
    )
    assert made["create", "pods"] == 2
    assert made["create", "services"] == made["create", "networkpolicies"] == 1

    job.kubectl("delete", "ddpjob", job.name)
    kinds = "ddpjobs,pods,services,endpointslices,networkpolicies"
    eventually(lambda: not job.kubectl("get", kinds, "-o", "name"), "all objects deleted", 60)


def test_killed_rank_costs_one_attempt_and_status_names_it(
    cluster: Cluster, namespace: str
) -> None:
    # The status shows the first checkpoint up to 5 s late, and the run must not be over by then.
    job = Job.apply(cluster, namespace, long_job(epochs=120))
    job.wait_for_checkpoint()
    before = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in job.pods()}
    kill_rank(job, 2)
    eventually(lambda: job.status["attempt"] == 2, "attempt 2", 30)
    status = job.wait_for("Completed", 180)
    assert status["attempt"] == 2
    assert status["restarts"] == 1
    assert status["resumedFromStep"] > 0
    failure = status["lastFailure"]
    assert failure["attempt"] == 1
    assert failure["rank"] == 2
    assert failure["signal"] == "SIGKILL"
    assert failure["node"] in cluster.node_names
    assert failure["message"] == "rank 2 on digits-1 was killed by SIGKILL"
    after = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in job.pods()}
    assert after == before  # In place: no pod was replaced.


def test_failing_script_fails_the_job_with_its_last_traceback_line(
    cluster: Cluster, namespace: str
) -> None:
    script = "raise ValueError('no data under /data')"
    job = Job.apply(cluster, namespace, script_job("failing", script, maxRestarts=0))
    status = job.wait_for("Failed", 120)
    assert "ValueError: no data under /data" in job.row("-o", "wide")["MESSAGE"]
    assert status["lastFailure"]["exitCode"] == 1
    assert "Traceback" in status["lastFailure"]["traceback"]
    # The pods end to free their nodes, and remain so that a user can read their logs.
    ended = {"Succeeded", "Failed"}
    eventually(lambda: {p["status"]["phase"] for p in job.pods()} <= ended, "pods end", 60)
    assert len(job.pods()) == 2


def test_unknown_setting_of_the_loop_starts_no_pod_and_one_of_the_task_is_not_retried(
    cluster: Cluster, namespace: str
) -> None:
    manifest = sample()
    manifest["spec"]["config"] = {"epoch": 20, "global_batch": 256}
    job = Job.apply(cluster, namespace, manifest)
    job.wait_for("Invalid", 60)
    assert 'unknown key "epoch"; did you mean "epochs"?' in job.row()["MESSAGE"]
    assert job.pods() == []
    # Only the code of the task knows its settings.
    manifest["spec"]["config"] = {"epochs": 20, "global_batch": 256, "task": {"widht": 8}}
    job = Job.apply(cluster, namespace, manifest)
    status = job.wait_for("Failed", 120)
    assert status["attempt"] == 1
    assert '"task.widht"' in job.row()["MESSAGE"]


def test_unchanged_job_causes_no_requests(cluster: Cluster, namespace: str) -> None:
    job = Job.apply(cluster, namespace, script_job("steady", STEADY_SCRIPT))
    job.wait_for("Running")
    # The last request of a start records that the spec trains, after a minute for a command.
    eventually(lambda: "trainedSpecHash" in job.status, "the record of the spec", 120)
    window = 60.0
    quiet_from = len(operator_requests(cluster))
    with pytest.raises(TimeoutError):
        eventually(lambda: len(operator_requests(cluster)) > quiet_from, "a request", window)
    row = job.row()
    assert (row["STATUS"], row["READY"], row["ATTEMPT"]) == ("Running", "2/2", "1")
    job.kubectl("delete", "ddpjob", job.name)


def test_suspend_deletes_the_pods_and_resume_continues_from_the_checkpoint(
    cluster: Cluster, namespace: str
) -> None:
    manifest = sample()
    manifest["spec"]["config"] |= {"epochs": 40}
    job = Job.apply(cluster, namespace, manifest)
    eventually(lambda: job.status.get("lastCheckpoint", {}).get("step", 0) > 0, "a checkpoint", 120)
    job.kubectl("patch", "ddpjob", job.name, "--type=merge", "-p", '{"spec":{"suspend":true}}')
    eventually(lambda: not job.pods(), "pods gone", 90)
    job.wait_for("Suspended", 30)
    saved = job.status["lastCheckpoint"]["step"]
    job.kubectl("patch", "ddpjob", job.name, "--type=merge", "-p", '{"spec":{"suspend":false}}')
    status = job.wait_for("Completed", 180)
    assert status["restarts"] == 0
    assert status["resumedFromStep"] >= saved


@pytest.mark.sweep
def test_job_resumed_while_its_pods_terminate_gets_new_pods(
    cluster: Cluster, namespace: str
) -> None:
    job = Job.apply(cluster, namespace, long_job())
    saved = job.wait_for_checkpoint()
    before = set(job.uids().values())
    job.kubectl("patch", "ddpjob", job.name, "--type=merge", "-p", '{"spec":{"suspend":true}}')
    eventually(
        lambda: any("deletionTimestamp" in pod["metadata"] for pod in job.pods()), "pods end", 60
    )
    job.kubectl("patch", "ddpjob", job.name, "--type=merge", "-p", '{"spec":{"suspend":false}}')
    status = job.wait_for("Completed", 180)
    assert (status["restarts"], status["infrastructureRestarts"]) == (0, 0)
    assert status["resumedFromStep"] >= saved
    assert not before & set(job.uids().values())
