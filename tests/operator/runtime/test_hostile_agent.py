"""Tests that agents with endlessly changing statuses cause a bounded cost."""

import re
from datetime import timedelta

import pytest

from ddp_operator.limits import MINOR_WRITES
from ddp_wire.messages import CheckpointInfo, Progress
from tests.operator.runtime.test_controller import Bench
from tests.operator.support import NOW, agent_status, failed_status

SECONDS = 100


@pytest.mark.slow
async def test_agent_that_flaps_causes_a_bounded_number_of_writes_and_events() -> None:
    bench = Bench()
    await bench.reconcile_until_idle()
    for index in range(2):
        bench.set_agent_status(f"digits-{index}", agent_status(index))
    await bench.reconcile_until_idle()
    before, events = bench.cluster.writes.count("status digits"), len(bench.cluster.events)
    for tenth in range(10 * SECONDS):
        bench.now = NOW + timedelta(seconds=tenth / 10)
        phase = "Starting" if tenth % 2 else "Training"
        report = agent_status(0, phase=phase, progress=Progress(step=tenth), revision=tenth)
        bench.set_agent_status("digits-0", report, ready=phase == "Training")
        await bench.reconcile()
    assert (
        bench.cluster.writes.count("status digits") - before <= MINOR_WRITES.burst + SECONDS / 5 + 1
    )
    assert len(bench.cluster.events) - events <= 1


@pytest.mark.slow
async def test_false_checkpoints_and_failures_cause_a_bounded_number_of_attempts() -> None:
    """The claimed checkpoints reset the delay between attempts."""
    bench = Bench(maxRestarts=10000, task="tasks.digits:build")
    await bench.train()
    for tenth in range(10 * SECONDS):
        bench.now = NOW + timedelta(seconds=tenth / 10)
        attempt = bench.status().attempt
        saved = CheckpointInfo(step=tenth, path="/checkpoints", at=NOW.timestamp())
        report = failed_status(0, attempt=attempt).model_copy(update={"checkpoint": saved})
        bench.set_agent_status("digits-0", report)
        bench.set_agent_status("digits-1", agent_status(1, attempt=attempt))
        await bench.reconcile()
    assert 30 < bench.status().attempt <= 4 + 32 + SECONDS * (1 / 30 + 1) + 2
    delayed = [event.message for event in bench.cluster.events if event.reason == "AttemptDelayed"]
    assert len(delayed) > SECONDS / 2
    assert len(delayed) == len(set(delayed)), "one Event for each attempt"
    assert re.match(r"attempt \d+ starts in up to 1 s, because the job has begun", delayed[0])
