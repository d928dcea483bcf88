"""Heartbeats of a rank: the step of each update is recorded, also between two heartbeats."""

from pathlib import Path

import pytest

from ddp_trainer.observe.heartbeats import HeartbeatWriter
from ddp_trainer.observe.times import TimeMeter
from ddp_trainer.ranks.environment import Ranks
from ddp_wire.activity import Activity, read_activities
from ddp_wire.messages import CheckpointInfo, LocalHeartbeat, RankPhase
from tests.trainer.observe.test_inspector import ask
from tests.trainer.rank_processes import Launcher


def written(directory: Path, local_rank: int = 0) -> LocalHeartbeat:
    return LocalHeartbeat.model_validate_json((directory / f"{local_rank}.json").read_bytes())


def test_each_update_writes_its_step_to_the_activity_record_and_no_heartbeat(
    tmp_path: Path,
) -> None:
    writer = HeartbeatWriter(tmp_path / "beats", Ranks(), 3, min_seconds=60.0)
    for step in (5, 6, 7):
        writer.step(step)
    newest = read_activities(tmp_path / "beats")[0]
    assert (written(tmp_path / "beats").step, newest.step) == (5, 7)


def test_first_three_update_durations_are_written_at_once(tmp_path: Path) -> None:
    meter, writer = TimeMeter(), HeartbeatWriter(tmp_path, Ranks(), 1, min_seconds=60.0)
    writer.measure(meter.read, None)
    for step in range(1, 6):
        meter.update()
        writer.step(step)
    times = written(tmp_path).times
    assert times is not None
    assert sum(times.updates) == 3


def test_new_checkpoint_is_reported_at_once(tmp_path: Path) -> None:
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


def test_no_rank_reports_its_end_before_the_last_commit(launcher: Launcher, tmp_path: Path) -> None:
    """The agents count a job as completed as soon as all ranks have reported their end."""
    beats, saves = tmp_path / "beats", tmp_path / "saves"
    arguments = [str(tmp_path), "--max_steps=2", f"--checkpoint.directory={saves}"]
    gang = launcher.call(
        "probes:train_with_held_commit", arguments, world=2, DDP_BEATS_DIR=str(beats)
    )

    def both_have_done_their_updates() -> bool:
        ranks = read_activities(beats)
        ends = {Activity.CHECKPOINT, Activity.ENDING}
        return len(ranks) == 2 and all(
            one.step == 2 and one.activity in ends for one in ranks.values()
        )

    gang.wait_until(both_have_done_their_updates)
    gang.wait_until(lambda: ask(beats, 1).waits)
    assert [written(beats, rank).phase for rank in (0, 1)] == [RankPhase.TRAINING] * 2
    assert list(saves.glob("step-*")) == []
    (tmp_path / "go").touch()
    assert gang.wait() == [0, 0], gang.err(0)
    assert [written(beats, rank).phase for rank in (0, 1)] == [RankPhase.DONE] * 2
    assert len(list(saves.glob("step-*"))) == 1
