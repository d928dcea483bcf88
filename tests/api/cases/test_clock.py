"""Tests of an operator whose clock is wrong or is set while it runs, with libfaketime."""

import platform
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from tests.api.cases.conftest import OperatorLauncher
from tests.api.client import eventually, path_of
from tests.api.job import Job
from tests.api.operator_process import OperatorProcess
from tests.harness import debian

pytestmark = pytest.mark.api

LIBRARY = f"/usr/lib/{platform.machine()}-linux-gnu/faketime/libfaketime.so.1"
TEN_MINUTES = 600
LATE_SECONDS = 3.0
"""Maximum delay of the operator's reaction to a deadline."""


class Clock:
    """The wall clock of one operator, as an offset to the real one."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.set(0)

    def set(self, offset: int) -> None:
        """Set the clock to an offset in seconds from the real time."""
        fresh = self._file.with_suffix(".new")
        fresh.write_text(f"{offset:+d}\n", encoding="ascii")
        fresh.rename(self._file)

    @property
    def environment(self) -> dict[str, str]:
        """Variables for a process that uses this clock. Its monotonic clock stays correct."""
        return {
            "LD_PRELOAD": LIBRARY,
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    """Return a clock that the test can set."""
    debian.ensure({LIBRARY: "libfaketime"})
    return Clock(tmp_path / "clock")


@pytest.fixture
def skewed_operator(launcher: OperatorLauncher, clock: Clock) -> Iterator[OperatorProcess]:
    """Yield an operator that uses the clock, not started yet."""
    operator = launcher.operator("skewed_operator", environment=clock.environment)
    yield operator
    operator.kill()


@pytest.mark.parametrize("offset", [-TEN_MINUTES, TEN_MINUTES])
async def test_constant_clock_offset_does_not_change_deadline_or_ttl(
    clock: Clock, skewed_operator: OperatorProcess, job: Job, other_job: Job, offset: int
) -> None:
    clock.set(offset)
    skewed_operator.start()
    await skewed_operator.wait_until_ready()
    started = time.monotonic()
    await job.train(activeDeadlineSeconds=4)
    await job.wait_for("Failed")
    assert 4 - 1 <= time.monotonic() - started <= 4 + LATE_SECONDS
    await other_job.train(ttlSecondsAfterFinished=3)
    before = time.time()
    await other_job.complete()
    await other_job.wait_for("Completed")
    after = time.time()
    ended = _seconds((await other_job.status())["completionTime"]) - offset
    assert before - 1 < ended <= after, "completionTime is the operator's clock, in whole seconds"
    await eventually(lambda: _gone(other_job), "the completed job is deleted", 10)
    gone = time.time()
    assert gone - ended >= 3
    assert gone - after <= 3 + LATE_SECONDS


@pytest.mark.parametrize("step", [-TEN_MINUTES, TEN_MINUTES])
async def test_clock_step_ends_no_job_early(
    clock: Clock, skewed_operator: OperatorProcess, job: Job, other_job: Job, step: int
) -> None:
    skewed_operator.start()
    await skewed_operator.wait_until_ready()
    await other_job.train(ttlSecondsAfterFinished=3600)
    await other_job.complete()
    await other_job.wait_for("Completed")
    await job.train(activeDeadlineSeconds=3600)
    await job.report_progress(step=5)
    await eventually(lambda: job.shows_step(5), "the status shows step 5")
    before = await job.uids()
    clock.set(step)
    await job.report_progress(step=6)
    await eventually(lambda: job.shows_step(6), "the status shows step 6", 12)
    await job.fail_rank(1)
    await job.pods_of_attempt(2)
    await job.start_training(attempt=2)
    await job.wait_for("Running")
    assert not await _gone(other_job)
    assert await job.uids() == before
    assert (await job.status())["restarts"] == 1


def _seconds(timestamp: str) -> float:
    """Return a timestamp of the API in Unix seconds."""
    return datetime.fromisoformat(timestamp).timestamp()


async def _gone(job: Job) -> bool:
    return await job.api.find(path_of("ddpjobs", job.namespace, job.name)) is None
