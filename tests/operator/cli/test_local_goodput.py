"""The goodput ledger of real local runs whose ranks are killed at random updates."""

import io
import itertools
import os
import random
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ddp_operator.api.base import API_VERSION, KIND
from ddp_operator.api.goodput import Bucket, GoodputStatus
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.cli.local_run import LocalRun
from ddp_operator.cluster.base import Manifest

ROOT = Path(__file__).parents[3]
STEPS, SAVE_EVERY = 90, 15


class RecordedRun(LocalRun):
    """A local run that keeps the last state of its job."""

    last: Manifest

    def _on_job(self, job: Manifest) -> None:
        self.last = job
        super()._on_job(job)

    @property
    def status(self) -> DDPJobStatus:
        return DDPJobStatus.model_validate(self.last["status"])

    @property
    def wall_milliseconds(self) -> int:
        """Wall-clock time of the job, as the API shows it."""
        created = datetime.fromisoformat(self.last["metadata"]["creationTimestamp"])
        completed = self.status.completion_time
        assert completed is not None
        return round(1000 * (completed - created).total_seconds())


def job(home: Path, kills: list[list[int]], *, memory: bool = False) -> dict[str, Any]:
    config = {
        "checkpoint": {"memory": memory},
        "max_steps": STEPS,
        "global_batch": 10,
        "task": {"kills": kills, "record_dir": str(home)},
    }
    spec = {
        "nodes": 2,
        "procsPerNode": 1,
        "task": "tests.operator.cli.killed_task:build",
        "config": config,
        "maxRestarts": 9,
        "env": [{"name": "PYTHONPATH", "value": str(ROOT)}],
        "checkpoint": {"claimName": "shared", "everySteps": SAVE_EVERY},
    }
    metadata = {"name": "ledger", "namespace": "default"}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}


def repeated_updates(home: Path, kills: list[list[int]]) -> int:
    """Return the number of repeated updates by the record of rank 0 and its resume events."""
    log = "".join(path.read_text() for path in (home / "logs").glob("*-0.log"))
    resumed = {1: 0}
    for line in log.splitlines():
        found = re.search(r"\[attempt (\d+)\] resumed at step (\d+) ", line)
        if found is not None:
            resumed[int(found[1])] = int(found[2])
    reached = repeated = 0
    for attempt in itertools.count(1):
        if attempt > len(kills) + 1:
            return repeated
        begun = len((home / f"{attempt}.txt").read_text().splitlines())
        done = kills[attempt - 1][1] if attempt <= len(kills) else begun
        end = resumed[attempt] + done
        repeated += max(0, min(end, reached) - resumed[attempt])
        reached = max(reached, end)
    raise AssertionError


@pytest.mark.slow
@pytest.mark.parametrize("memory", [False, True], ids=["from the volume", "from memory"])
@pytest.mark.parametrize("seed", range(int(os.environ.get("DDP_GOODPUT_RUNS", "1"))))
async def test_goodput_ledger_of_a_run_with_killed_ranks_is_exact(
    tmp_path: Path, seed: int, *, memory: bool
) -> None:
    rng = random.Random(f"{os.environ.get('DDP_SEED', '0')} {seed}")  # noqa: S311
    kills = [[rng.randrange(2), rng.randrange(SAVE_EVERY + 1, 2 * SAVE_EVERY)] for _ in range(2)]
    out = io.StringIO()
    manifest = job(tmp_path, kills, memory=memory)
    run = RecordedRun(manifest, {}, tmp_path, Console(file=out), verbose=False)
    assert await run.run() == 0
    goodput = run.status.goodput
    assert goodput is not None
    print(f"kills {kills}, wall {run.wall_milliseconds}, {goodput.model_dump(exclude_none=True)}")
    (line,) = (line for line in out.getvalue().splitlines() if line.startswith("  goodput: "))
    assert line.startswith(f"  goodput: {goodput.percent} (training ")
    assert "recovering " in line
    assert run.status.attempt == 3
    assert total(goodput) == pytest.approx(run.wall_milliseconds, rel=0.01)
    assert goodput.redone_steps == repeated_updates(tmp_path, kills)
    assert (goodput.redone_steps == 0) == memory
    assert goodput.reached_step == STEPS
    assert goodput.redone_milliseconds >= 0.5 * 20 * goodput.redone_steps
    assert goodput.training_milliseconds >= 0.5 * 20 * STEPS
    assert 0 < goodput.recovering_milliseconds < 0.8 * run.wall_milliseconds
    assert goodput.hang_milliseconds == goodput.suspended_milliseconds == 0


def total(goodput: GoodputStatus) -> int:
    return sum(goodput.milliseconds(bucket) for bucket in Bucket)
