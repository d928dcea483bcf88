"""A volume that refuses, and a rank that dies while it writes."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddp_trainer.checkpoint.format import PENDING, check_whole
from tests.cluster.support import Job, long_job
from tests.fault_player import judge
from tests.fault_player.record import read_lives
from tests.fault_player.strikes import rank_process
from tests.harness.cluster import Cluster
from tests.tools.install import eventually

pytestmark = pytest.mark.cluster


@pytest.fixture
def small_volume(cluster: Cluster, namespace: str) -> Iterator[Path]:
    """The claim's directory is a file system of its own, of 64 MiB."""
    directory = cluster.shared_dir / namespace
    options = "size=64m,uid=1000,gid=1000,mode=0755"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(directory)], check=True)
    yield directory
    cluster.kubectl("delete", "namespace", namespace, timeout=120)
    subprocess.run(["umount", "--lazy", str(directory)], check=True)


def fill(directory: Path) -> Path:
    """Use up the volume."""
    filler = directory / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
    return filler


def newest(job: Job) -> Path:
    """The directory of the newest checkpoint, as this machine sees it."""
    path = Path(job.status["lastCheckpoint"]["path"])
    return job.run_directory / path.name


def warned(job: Job) -> bool:
    return "checkpoint not saved" in job.kubectl("logs", "digits-0")


@pytest.mark.sweep
def test_case_35_full_volume_costs_checkpoints_and_not_the_run(
    cluster: Cluster, namespace: str, small_volume: Path
) -> None:
    job = Job.apply(cluster, namespace, long_job(epochs=300))
    job.wait_for_a_checkpoint()
    filler = fill(small_volume)
    eventually(lambda: warned(job), "a warning", 60)
    check_whole(newest(job))
    filler.unlink()
    job.wait_for_a_checkpoint()
    status = job.status
    assert status["attempt"] == 1
    check_whole(newest(job))


@pytest.mark.sweep
def test_case_35_read_only_volume_fails_the_job_with_its_reason(
    cluster: Cluster, namespace: str, small_volume: Path
) -> None:
    job = Job.apply(cluster, namespace, long_job())
    job.wait_for_a_checkpoint()
    subprocess.run(["mount", "-o", "remount,ro", str(small_volume)], check=True)
    status = job.wait_for("Failed", 180)
    assert "Read-only file system" in job.row("-o", "wide")["MESSAGE"]
    assert status["lastFailure"]["cause"] == "Application"
    check_whole(newest(job))


@pytest.mark.sweep
def test_case_36_rank_killed_while_it_writes_a_checkpoint(cluster: Cluster, namespace: str) -> None:
    chance = random.Random(36)  # noqa: S311 (when to strike)
    manifest = long_job(epochs=400, log={"every_steps": 1}, task={"width": 128})
    manifest["spec"]["maxRestarts"] = 100
    manifest["spec"]["checkpoint"] |= {"everySteps": 5}
    job = Job.apply(cluster, namespace, manifest)
    directory = job.run_directory

    def saving() -> bool:
        return any(path.name.endswith(PENDING) for path in directory.iterdir())

    for attempt in range(1, 9):
        eventually(lambda: job.status["attempt"] == attempt, "the attempt", 60)  # noqa: B023
        job.wait_for_a_checkpoint()
        victim = rank_process(job, 0)
        eventually(saving, "a checkpoint that is being written", 60, every=0.001)
        time.sleep(chance.uniform(0.0, 0.03))  # Anywhere within it.
        os.kill(victim, signal.SIGKILL)
    eventually(lambda: job.status["attempt"] == 9, "the last attempt", 60)
    job.wait_for_a_checkpoint()
    lives = read_lives(job.run_directory)
    assert not judge.lost_steps(lives)
    assert job.status["restarts"] == 8
    check_whole(newest(job))
