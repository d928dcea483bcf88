"""Heartbeats of a rank: the step of each update is recorded, also between two heartbeats."""

from pathlib import Path

import pytest

from ddp_trainer.observe.heartbeats import HeartbeatWriter
from ddp_trainer.observe.times import TimeMeter
from ddp_trainer.ranks.environment import Ranks
from ddp_wire.activity import read_activities
from ddp_wire.contract import CheckpointInfo, LocalHeartbeat


def written(directory: Path) -> LocalHeartbeat:
    return LocalHeartbeat.model_validate_json((directory / "0.json").read_bytes())


def test_each_update_writes_its_step_but_not_a_heartbeat(tmp_path: Path) -> None:
    writer = HeartbeatWriter(tmp_path / "beats", Ranks(), 3, min_seconds=60.0)
    for step in (5, 6, 7):
        writer.step(step)
    newest = read_activities(tmp_path / "beats")[0]
    assert (written(tmp_path / "beats").step, newest.step) == (5, 7)


def test_agent_knows_three_durations_as_soon_as_there_are_three(tmp_path: Path) -> None:
    meter, writer = TimeMeter(), HeartbeatWriter(tmp_path, Ranks(), 1, min_seconds=60.0)
    writer.measure(meter.read, None)
    for step in range(1, 6):
        meter.update()
        writer.step(step)
    times = written(tmp_path).times
    assert times is not None
    assert sum(times.updates) == 3


def test_a_checkpoint_is_told_at_once(tmp_path: Path) -> None:
    writer = HeartbeatWriter(tmp_path, Ranks(), 1, min_seconds=60.0)
    writer.step(20)
    saved = CheckpointInfo(step=20, path="/run/step-00000020.attempt-1", at=1.0)
    writer.checkpoint(saved)
    assert written(tmp_path).checkpoint == saved


@pytest.mark.parametrize("is_first", [True, False])
def test_only_rank_0_writes_the_times_for_the_operator(tmp_path: Path, is_first: bool) -> None:
    meter = TimeMeter()
    writer = HeartbeatWriter(tmp_path, Ranks(), 1)
    writer.measure(meter.read, meter.since_first_update if is_first else None)
    meter.update()
    writer.step(1)
    measured = written(tmp_path).training_times
    assert (measured is not None) == is_first
    assert measured is None or measured.step == 1
    assert written(tmp_path).times is not None
