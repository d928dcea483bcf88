"""Tests of a job from creation to completion on two real nodes, as a user sees it."""

import collections
import json

import pytest

from ddp_wire.contract import HISTORY_FILE
from tests.cluster.support import (
    Job,
    long_job,
    operator_requests,
    sample,
)
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
    assert "[attempt 1] start: 4 ranks on cpu, ddp, " in log
    history = (job.run_directory / HISTORY_FILE).read_text().splitlines()
    (start,) = [event for event in map(json.loads, history) if event["event"] == "start"]
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
