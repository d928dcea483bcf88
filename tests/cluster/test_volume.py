"""Tests of a full or read-only volume, and of a rank that is killed during a checkpoint."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ddp_trainer.checkpoint.format import PENDING, names_in, verify
from tests.cluster.support import EVERY_UPDATE, Job, long_job
from tests.fault_player import run_checks
from tests.fault_player.faults import rank_process
from tests.fault_player.record import read_attempts
from tests.harness import debian
from tests.harness.cluster import Cluster
from tests.harness.install import eventually

pytestmark = pytest.mark.cluster


@contextmanager
def mounted(cluster: Cluster, namespace: str, *mount: str) -> Iterator[Path]:
    """Mount a file system at the claim's directory, and yield the directory."""
    directory = cluster.shared_dir / namespace
    subprocess.run(["mount", *mount, str(directory)], check=True)
    yield directory
    cluster.kubectl("delete", "namespace", namespace, timeout=120)
    subprocess.run(["umount", "--lazy", str(directory)], check=True)


@pytest.fixture
def small_volume(cluster: Cluster, namespace: str) -> Iterator[Path]:
    """Give the claim a file system of 64 MiB in memory, and yield its directory."""
    options = "size=64m,uid=1000,gid=1000,mode=0755"
    with mounted(cluster, namespace, "-t", "tmpfs", "-o", options, "tmpfs") as directory:
        yield directory


@pytest.fixture
def disk(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[Path]:
    """Give the claim an ext4 file system of 64 MiB, and yield its directory."""
    debian.ensure({"mkfs.ext4": "e2fsprogs"})
    image = tmp_path / "disk"
    with image.open("wb") as file:
        file.truncate(64 << 20)
    make = ["mkfs.ext4", "-q", "-F", "-E", "root_owner=1000:1000", str(image)]
    subprocess.run(make, check=True)
    with mounted(cluster, namespace, "-o", "loop", str(image)) as directory:
        yield directory


def fill_volume(directory: Path) -> Path:
    """Fill the volume, and return the file that fills it."""
    filler = directory / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
    return filler


def newest_checkpoint(job: Job) -> Path:
    """Return the directory of the newest checkpoint, as a path of this machine.

    The one that the status names may be deleted already, if the run saves often.
    """
    name = max(name for name in names_in(job.run_directory) if not name.suffix)
    return job.run_directory / str(name)


def has_save_warning(job: Job) -> bool:
    return "was not saved to" in job.kubectl("logs", "digits-0")


@pytest.mark.sweep
def test_full_volume_loses_checkpoints_but_not_the_run(
    cluster: Cluster, namespace: str, small_volume: Path
) -> None:
    job = Job.apply(cluster, namespace, long_job(epochs=300))
    job.wait_for_checkpoint()
    filler = fill_volume(small_volume)
    eventually(lambda: has_save_warning(job), "a warning", 60)
    verify(newest_checkpoint(job))
    filler.unlink()
    job.wait_for_checkpoint()
    status = job.status
    assert status["attempt"] == 1
    verify(newest_checkpoint(job))


@pytest.mark.sweep
def test_read_only_volume_fails_the_job_with_its_reason(
    cluster: Cluster, namespace: str, disk: Path
) -> None:
    job = Job.apply(cluster, namespace, long_job())
    job.wait_for_checkpoint()
    # Like an error of the disk, and unlike "ro", this works while files are open for writing.
    subprocess.run(["mount", "-o", "remount,abort", str(disk)], check=True)
    status = job.wait_for("Failed", 180)
    assert "Read-only file system" in job.row("-o", "wide")["MESSAGE"]
    assert status["lastFailure"]["cause"] == "Application"
    verify(newest_checkpoint(job))


@pytest.mark.sweep
def test_run_resumes_from_a_whole_checkpoint_after_kills_during_the_write(
    cluster: Cluster, namespace: str
) -> None:
    chance = random.Random(36)  # noqa: S311 (times of kills)
    manifest = long_job(epochs=400, log=EVERY_UPDATE, task={"width": 128})
    manifest["spec"]["maxRestarts"] = 100
    manifest["spec"]["checkpoint"] |= {"everySteps": 5}
    job = Job.apply(cluster, namespace, manifest)
    directory = job.run_directory

    def saving() -> bool:
        return any(path.name.endswith(PENDING) for path in directory.iterdir())

    for attempt in range(1, 9):
        eventually(lambda: job.status["attempt"] == attempt, "the next attempt starts", 60)  # noqa: B023
        job.wait_for_checkpoint()
        victim = rank_process(job, 0)
        eventually(saving, "rank 0 writes a checkpoint", 60, every=0.001)
        time.sleep(chance.uniform(0.0, 0.03))  # A random moment of the write.
        os.kill(victim, signal.SIGKILL)
    eventually(lambda: job.status["attempt"] == 9, "attempt 9 starts", 60)
    job.wait_for_checkpoint()
    attempts = read_attempts(job.run_directory)
    assert not run_checks.lost_steps(attempts)
    assert job.status["restarts"] == 8
    verify(newest_checkpoint(job))
