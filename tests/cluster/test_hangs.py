"""Attempts in which one rank hangs: the status names the rank, and the run goes on."""

import json
import random
import re
from datetime import datetime
from pathlib import Path

import pytest

from tests.cluster.support import JSON, Job
from tests.harness.cluster import Cluster

pytestmark = pytest.mark.cluster

WAYS = {
    "loop": "in loss",
    "stop": "is stopped by a signal",
    "hook": "in _hook",
    "read": "in loss",
    "worker": "in data of update",
    "collective": "backward of update",
}
"""Text that the message shows for each way to hang."""


def hanging_job(
    cluster: Cluster, namespace: str, ways: list[str], ranks: list[int], **hang: int
) -> Job:
    """Create a job of four ranks whose attempts hang in these ways, one after the other."""
    return job_of_the_task(
        cluster,
        namespace,
        {"ways": ways, "ranks": ranks},
        epochs=5 * (len(ways) + 1),
        hang={"dataSeconds": 30} | hang,
    )


def job_of_the_task(
    cluster: Cluster,
    namespace: str,
    config: JSON,
    *,
    epochs: int,
    hang: JSON,
    name: str = "hanging",
) -> Job:
    code = (Path(__file__).parent / "hanging_task.py").read_text(encoding="utf-8")
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "hanging"},
        "data": {"hanging_task.py": code},
    }
    cluster.kubectl("-n", namespace, "apply", "-f", "-", input=json.dumps(config_map))
    spec: JSON = {
        "nodes": 2,
        "procsPerNode": 2,
        "task": "hanging_task:build",
        "config": {
            "epochs": epochs,
            "global_batch": 32,
            "data": {"workers": 1},
            "eval_every_steps": 100,
            "task": config,
        },
        "maxRestarts": len(config.get("ways", [])),
        "hang": hang,
        "checkpoint": {
            "claimName": "training-shared",
            "everySteps": 10 if "ways" in config else 50,
        },
        "env": [{"name": "PYTHONPATH", "value": "/code"}],
        "volumes": [{"name": "code", "configMap": {"name": "hanging"}}],
        "volumeMounts": [{"name": "code", "mountPath": "/code"}],
        "resources": {"requests": {"cpu": "400m"}},
    }
    return Job.apply(cluster, namespace, manifest(name, spec))


def manifest(name: str, spec: JSON) -> JSON:
    version = "ddp-trainer.dev/v1alpha1"
    return {"apiVersion": version, "kind": "DDPJob", "metadata": {"name": name}, "spec": spec}


def check_that_hangs_are_named(job: Job, ways: list[str], ranks: list[int]) -> None:
    status = job.wait_for("Completed", 120 * len(ways))
    ended = {one["number"]: one for one in status["attempts"]}
    for number, (way, rank) in enumerate(zip(ways, ranks, strict=True), start=1):
        assert ended[number]["reason"] == "Hung"
        assert ended[number]["message"].startswith(f"rank {rank} on hanging-{rank // 2} made no")
        assert WAYS[way] in ended[number]["message"]
    assert sum(strike["count"] for strike in status["strikes"]) == len(ways)


def chosen(ways: list[str], seed: int) -> list[int]:
    return random.Random(seed).choices(range(4), k=len(ways))  # noqa: S311 (a test's choice)


def test_operator_names_the_rank_that_hangs(cluster: Cluster, namespace: str) -> None:
    ways = ["stop", "hook", "collective"]
    job = hanging_job(cluster, namespace, ways, ranks := chosen(ways, 19), stepSeconds=2)
    check_that_hangs_are_named(job, ways, ranks)


@pytest.mark.sweep
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(4))
def test_operator_names_a_hung_rank_with_the_default_limits(
    cluster: Cluster, namespace: str, seed: int
) -> None:
    ways = list(WAYS)
    job = hanging_job(cluster, namespace, ways, ranks := chosen(ways, seed))
    check_that_hangs_are_named(job, ways, ranks)
    recovery = job.status["lastRecovery"]
    print(f"seed {seed}: ranks {ranks}, last recovery {recovery['summary']}")
    assert recovery["decidedMilliseconds"] <= 60_000
    assert recovery["firstStepMilliseconds"] <= 75_000


@pytest.mark.sweep
@pytest.mark.timeout(1800)
def test_slow_work_does_not_count_as_a_hang_and_equal_ranks_not_as_stragglers(
    cluster: Cluster, namespace: str
) -> None:
    """Ten minutes of two jobs at once.

    One has jittery updates, with a long first update, evaluations and checkpoints. The ranks of the
    other one do equal work in forward passes of 50 ms, as those that `tests/trainer` slows down.
    """
    work = {"forward_seconds": 0.05}
    equal = job_of_the_task(cluster, namespace, work, epochs=100_000, hang={}, name="equal")
    config = {"slow_seconds": 40.0, "jitter_seconds": 2.0}
    job = job_of_the_task(cluster, namespace, config, epochs=25, hang={})
    status = job.wait_for("Completed", 1200)
    assert status["attempt"] == 1, status["attempts"]
    seconds = [datetime.fromisoformat(status[name]) for name in ("startTime", "completionTime")]
    print(f"no alarm in {(seconds[1] - seconds[0]).total_seconds():.0f} s")
    assert (seconds[1] - seconds[0]).total_seconds() >= 600
    check_that_no_rank_was_named(equal)


def check_that_no_rank_was_named(job: Job) -> None:
    """Check the log of rank 0 and the Events of a job that still runs."""
    status = job.status
    assert (job.reason, status["attempt"]) == ("Running", 1), status
    progress = status["progress"]
    print(f"{progress['step']} updates of equal ranks")
    assert progress["step"] > 1000
    assert progress["samplesPerSecond"] < 32 / 0.05, "the forward passes have their duration"
    log = job.kubectl("logs", f"{job.name}-0")
    assert re.search(r"\[attempt 1\] step \d+ of \d+: loss ", log)
    assert "times as long" not in log
    selector = f"reason=Straggler,involvedObject.name={job.name}"
    assert job.kubectl("get", "events", "--field-selector", selector, "-o", "name") == ""
