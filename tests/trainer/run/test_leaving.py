"""A rank that must leave inside an update keeps its state when the update ends."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ddp_trainer.run import survivors
from ddp_trainer.run.survivors import Survivor
from ddp_trainer.train import loop
from ddp_wire.contract import ExitCode
from ddp_wire.records import ask_to_leave, is_written
from tests.agent.support import wait_until
from tests.trainer.runs import opened

NO_COPIES = {"memory_every_steps": None}


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the exit codes with which this process should have ended."""
    found: list[int] = []
    end: Callable[[int], None] = found.append
    monkeypatch.setattr(os, "_exit", end)
    return found


def test_agent_waits_until_the_update_ends_and_the_record_is_written(
    tmp_path: Path, exits: list[int]
) -> None:
    run = opened(global_batch=5, max_steps=3, checkpoint=NO_COPIES)
    run.records = tmp_path
    survivor = Survivor(run)
    loop(run, survivor)
    ask_to_leave(tmp_path, run.attempt)
    survivor.leave_if_asked()  # The gate is closed, as inside an update.
    wait_until(lambda: is_written(tmp_path), "the rank tells the agent that it will write")
    assert list(tmp_path.glob("step-*")) == []
    with run.learner.gate:
        wait_until(lambda: bool(exits), "the rank has left")
    assert exits == [ExitCode.PREEMPTED]
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-00000003.attempt-0"]
    assert not is_written(tmp_path)


def test_rank_that_hangs_in_an_update_is_not_waited_for_long(
    tmp_path: Path, exits: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survivors, "GATE_SECONDS", 0.2)
    run = opened(global_batch=5, max_steps=3, checkpoint=NO_COPIES)
    run.records = tmp_path
    survivor = Survivor(run)
    loop(run, survivor)
    ask_to_leave(tmp_path, run.attempt)
    survivor.leave_if_asked()
    wait_until(lambda: is_written(tmp_path), "the rank tells the agent that it will write")
    wait_until(lambda: not is_written(tmp_path), "the rank gives up")
    assert (exits, list(tmp_path.glob("step-*"))) == ([], [])
