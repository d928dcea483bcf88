"""Tests of recovery on two real nodes and of the cause in the status.

All faults but one hit the same run, one after another. Each test compares the status with the
status at its own start, so each test can also run alone.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from ddp_operator.client import connect
from ddp_operator.client.checkpoints import checkpoints_of, download
from ddp_wire.contract import ANNOTATION_INSPECTION
from tests.cluster.support import ENDLESS_EPOCHS, Job, long_job, script_job
from tests.fault_player.faults import delete_pod, kill_rank
from tests.harness import install
from tests.harness.cluster import Cluster
from tests.harness.install import RELEASE, SYSTEM_NAMESPACE, eventually, operator_pods

pytestmark = pytest.mark.cluster

COUNTERS = ("attempt", "restarts", "infrastructureRestarts", "freeRestarts")


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


@pytest.fixture(scope="module")
def endless_run(cluster: Cluster) -> Iterator[Job]:
    """Yield a job of two pods with two ranks each that trains until the last test has ended."""
    install.create_namespace(cluster, "recovery")
    manifest = long_job(epochs=ENDLESS_EPOCHS)
    manifest["spec"]["maxRestarts"] = 99
    manifest["spec"]["checkpoint"]["keep"] = 100  # None is deleted while it is downloaded.
    job = Job.apply(cluster, "recovery", manifest)
    yield job
    job.kubectl("delete", "ddpjob", job.name)


@pytest.fixture
def run(endless_run: Job) -> Job:
    """Return the run once its attempt has saved a checkpoint."""
    eventually(lambda: has_saved(endless_run), "the attempt has saved a checkpoint", 120)
    return endless_run


def has_saved(job: Job) -> bool:
    """Return whether the newest checkpoint is of the current attempt."""
    status = job.status
    path = str(status.get("lastCheckpoint", {}).get("path"))
    return path.endswith(f".attempt-{status.get('attempt')}")


def counters(job: Job) -> list[int]:
    status = job.status
    return [int(status.get(name, 0)) for name in COUNTERS]


def wait_for_next_attempt(job: Job, before: list[int]) -> dict[str, Any]:
    """Wait until the next attempt has saved a checkpoint, and return the status."""
    eventually(lambda: counters(job)[0] > before[0], "the next attempt", 60)
    eventually(lambda: has_saved(job), "the next attempt has saved a checkpoint", 120)
    status = job.status
    assert status["attempt"] == before[0] + 1
    assert status["resumedFromStep"] > 0
    return status


def charged(job: Job, before: list[int]) -> list[int]:
    """Return the increase of the counters of attempts and of each kind of restart."""
    return [now - then for now, then in zip(counters(job), before, strict=True)]


def updates_done_twice(job: Job) -> int:
    """Return the number of updates that all attempts have repeated."""
    return int(job.status["goodput"].get("redoneSteps", 0))


def test_user_reads_stacks_and_checkpoints_while_the_ranks_train(
    cluster: Cluster, run: Job, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    job = connect(run.namespace).get(run.name)
    attempt = run.status["attempt"]
    for _ in range(2):
        found = job.stacks()
        assert [one.rank for one in found] == [0, 1, 2, 3]
        assert all("ddp_trainer/train.py" in one.stacks for one in found)
    assert job.profile(3).startswith("rank 0 writes the trace of 3 updates to /checkpoints/")
    assert ANNOTATION_INSPECTION not in run.read()["metadata"].get("annotations", {})
    chosen = download(checkpoints_of(job), None, tmp_path / "model.safetensors")
    assert load_file(tmp_path / "model.safetensors")
    assert chosen["state"] == "whole"
    assert run.status["attempt"] == attempt


def test_killed_rank_restarts_all_ranks_in_place_and_status_names_it(
    cluster: Cluster, run: Job
) -> None:
    before, uids, twice = counters(run), run.uids(), updates_done_twice(run)
    kill_rank(run, 2)
    failure = wait_for_next_attempt(run, before)["lastFailure"]
    assert charged(run, before) == [1, 1, 0, 0]
    assert failure["attempt"] == before[0]
    assert (failure["rank"], failure["signal"]) == (2, "SIGKILL")
    assert failure["node"] in cluster.node_names
    assert failure["message"] == "rank 2 on digits-1 was killed by SIGKILL"
    assert run.uids() == uids  # In place: no pod was replaced.
    assert updates_done_twice(run) == twice  # The other ranks have kept their state.


@pytest.mark.parametrize(
    "victim", ["digits-0", pytest.param("digits-1", marks=pytest.mark.sweep)], ids=["0", "1"]
)
def test_operator_replaces_a_deleted_pod(run: Job, victim: str) -> None:
    before, uids, twice = counters(run), run.uids(), updates_done_twice(run)
    delete_pod(run, victim)
    failure = wait_for_next_attempt(run, before)["lastFailure"]
    assert charged(run, before) == [1, 0, 1, 0]
    assert failure["pod"] == victim
    assert {name for name, uid in run.uids().items() if uid != uids[name]} == {victim}
    assert updates_done_twice(run) == twice


def test_operator_recovers_a_rank_killed_while_it_was_down(cluster: Cluster, run: Job) -> None:
    before = counters(run)
    scale = ("-n", SYSTEM_NAMESPACE, "scale", "deployment", RELEASE)
    cluster.kubectl(*scale, "--replicas=0")
    try:
        eventually(lambda: not operator_pods(cluster), "the operator is gone", 60)
        kill_rank(run, 1)
    finally:
        cluster.kubectl(*scale, "--replicas=1")
    failure = wait_for_next_attempt(run, before)["lastFailure"]
    assert charged(run, before) == [1, 1, 0, 0]
    assert failure["signal"] == "SIGKILL"


def test_suspend_deletes_the_pods_and_resume_continues_from_the_checkpoint(run: Job) -> None:
    before = counters(run)
    run.kubectl("patch", "ddpjob", run.name, "--type=merge", "-p", '{"spec":{"suspend":true}}')
    eventually(lambda: not run.pods(), "pods gone", 90)
    run.wait_for("Suspended", 30)
    saved = run.saved_step
    run.kubectl("patch", "ddpjob", run.name, "--type=merge", "-p", '{"spec":{"suspend":false}}')
    status = wait_for_next_attempt(run, before)
    assert charged(run, before) == [1, 0, 0, 1]
    assert status["resumedFromStep"] >= saved
