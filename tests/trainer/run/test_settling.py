"""Tests that the activity of a rank is a save, evaluation or rollback only during it."""

from pathlib import Path

import pytest
import torch

from ddp_trainer.checkpoint.snapshot import Checkpoint
from ddp_trainer.run import settling
from ddp_trainer.run.saving import save
from ddp_trainer.train import close, loop
from ddp_wire.activity import Activity
from tests.trainer.runs import opened


@pytest.mark.slow
def test_device_finishes_all_updates_before_a_save_and_an_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU pending updates may wait for other ranks, and an update has a shorter limit."""
    seen: list[str] = []
    run = opened(
        max_steps=6,
        global_batch=10,
        eval_every_steps=2,
        checkpoint={
            "directory": str(tmp_path),
            "every_steps": 3,
            "memory_every_steps": None,
        },
    )
    enter = run.learner.trace.enter

    def entering(activity: Activity) -> None:
        seen.append(activity.name)
        enter(activity)

    monkeypatch.setattr(run.learner.trace, "enter", entering)
    monkeypatch.setattr(settling, "finish_updates", lambda _: seen.append("finished"))
    loop(run)
    close(run, stopped=False)
    long_ones = [name for name in seen if name in {"finished", "CHECKPOINT", "EVALUATION"}]
    assert long_ones.count("EVALUATION") == 3
    assert long_ones.count("CHECKPOINT") == 2
    settled = [at for at, name in enumerate(seen) if name == "finished"]
    for at, name in enumerate(seen):
        if name in {"CHECKPOINT", "EVALUATION"}:
            since = max(one for one in settled if one < at)
            assert not {"FORWARD", "BACKWARD", "OPTIMIZER"} & set(seen[since:at])


def test_rollback_has_the_hang_limit_of_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The volume may be slow. An exchange has the short limit of an update."""
    run = opened(
        max_steps=5,
        global_batch=10,
        log={"every_steps": 1},
        nonfinite={"policy": "rollback"},
        checkpoint={"directory": str(tmp_path), "every_steps": 9},
        task={"nan_sample": 7},
    )
    save(run)
    entered: list[Activity] = []
    restored: list[Activity] = []
    enter, receive = run.learner.trace.enter, run.checkpoints.receive

    def entering(activity: Activity) -> None:
        entered.append(activity)
        enter(activity)

    def receiving(device: torch.device) -> Checkpoint:
        restored.append(entered[-1])
        return receive(device)

    monkeypatch.setattr(run.learner.trace, "enter", entering)
    monkeypatch.setattr(run.checkpoints, "receive", receiving)
    loop(run)
    assert restored == [Activity.CHECKPOINT]
