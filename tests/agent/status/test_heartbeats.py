"""Heartbeats as the agent reads them: unreadable and old ones do not count."""

import time
from pathlib import Path

import pytest

from ddp_agent.clock import Clock
from ddp_agent.processes.launch import prepare
from ddp_agent.status.heartbeats import all_joined, all_spawned, read_heartbeats
from ddp_agent.status_writer import StatusWriter
from ddp_wire.activity import ActivityWriter
from ddp_wire.contract import Env
from ddp_wire.messages import METRICS, AgentPhase, CheckpointInfo, Heartbeat, Progress, RankPhase
from tests.agent.support import config, heartbeat, members


def write(home: Path, found: Heartbeat) -> None:
    (home / f"{found.local_rank}.json").write_text(found.to_json(), encoding="utf-8")


def test_heartbeats_are_sorted_by_local_rank(tmp_path: Path) -> None:
    for local_rank in (10, 2, 0):
        write(tmp_path, heartbeat(local_rank=local_rank, rank=local_rank + 4))
    assert [h.local_rank for h in read_heartbeats(tmp_path, 1)] == [0, 2, 10]


def test_heartbeat_file_keeps_all_fields(tmp_path: Path) -> None:
    written = heartbeat(
        step=7,
        resumed_from=5,
        progress=Progress(step=7, total_steps=9, loss=0.25, metrics={"accuracy": 0.5}),
        checkpoint=CheckpointInfo(step=5, path="/c/step-5", at=1.5),
    )
    write(tmp_path, written)
    (read,) = read_heartbeats(tmp_path, 1)
    assert read.model_dump(exclude={"times"}) == written.model_dump()


def test_status_of_a_script_with_thousands_of_metrics_stays_readable(tmp_path: Path) -> None:
    many = {f"norm of layer {n} {'x' * 300}": float(n) for n in range(5000)}
    write(tmp_path, heartbeat(progress=Progress(step=7, metrics=many)))
    (read,) = read_heartbeats(tmp_path, 1)
    assert read.progress is not None
    assert list(read.progress.metrics.values()) == [float(n) for n in range(METRICS)]
    assert len(read.to_json()) < 10_000


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"attempt": 1}',
        b"\xff\xfe\x00",
        heartbeat().to_json()[:-5].encode(),
    ],
    ids=["empty", "cut", "list", "null", "fields missing", "not UTF-8", "half written"],
)
def test_invalid_heartbeat_files_are_ignored(tmp_path: Path, content: bytes) -> None:
    write(tmp_path, heartbeat(local_rank=0))
    (tmp_path / "1.json").write_bytes(content)
    assert [h.local_rank for h in read_heartbeats(tmp_path, 1)] == [0]


def test_temporary_heartbeat_files_are_ignored(tmp_path: Path) -> None:
    (tmp_path / ".0.json.tmp").write_text(heartbeat().to_json())
    (tmp_path / "1.json").mkdir()
    assert read_heartbeats(tmp_path, 1) == []


def test_heartbeats_of_other_attempts_are_ignored(tmp_path: Path) -> None:
    write(tmp_path, heartbeat(attempt=1))
    assert read_heartbeats(tmp_path, 2) == []
    assert len(read_heartbeats(tmp_path, 1)) == 1


def test_missing_heartbeat_directory_gives_no_heartbeats(tmp_path: Path) -> None:
    assert read_heartbeats(tmp_path / "missing", 1) == []


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_heartbeats_with_non_finite_numbers_are_read(tmp_path: Path, value: float) -> None:
    """A diverged run reports nan. It must not look like a run without heartbeats."""
    progress = Progress(step=7, loss=value, samples_per_second=value, metrics={"accuracy": value})
    write(tmp_path, heartbeat(progress=progress))
    found = read_heartbeats(tmp_path, 1)
    assert [h.local_rank for h in found] == [0]
    assert found[0].progress is not None
    assert found[0].progress.step == 7


@pytest.mark.parametrize(
    ("phases", "trains"),
    [
        ([RankPhase.TRAINING, RankPhase.TRAINING], True),
        ([RankPhase.TRAINING, RankPhase.DONE], True),
        ([RankPhase.TRAINING, RankPhase.STARTING], False),
        ([RankPhase.TRAINING], False),
        ([], False),
    ],
    ids=["both train", "one is done", "one starts", "one is missing", "both are missing"],
)
def test_node_trains_once_all_its_ranks_have_joined(phases: list[RankPhase], trains: bool) -> None:
    heartbeats = [heartbeat(local_rank=i, phase=phase) for i, phase in enumerate(phases)]
    assert all_joined(heartbeats, 2) is trains


def test_ranks_without_heartbeats_count_as_spawned_once_their_logs_exist(tmp_path: Path) -> None:
    def spawn(local_rank: int) -> None:
        path = tmp_path / "run1" / "attempt_0" / str(local_rank)
        path.mkdir(parents=True)
        (path / "stderr.log").touch()

    assert not all_spawned(tmp_path, 2)
    spawn(0)
    assert not all_spawned(tmp_path, 2)
    spawn(1)
    assert all_spawned(tmp_path, 2)


def test_activity_record_adds_the_newest_step_to_an_old_heartbeat(tmp_path: Path) -> None:
    write(tmp_path, heartbeat(step=7, at=1.0))
    record = ActivityWriter(tmp_path / "0.activity")
    record.step(6)
    assert read_heartbeats(tmp_path, 1)[0].step == 7
    before = time.time()
    record.step(9)
    (found,) = read_heartbeats(tmp_path, 1)
    assert found.step == 9
    assert before - 0.01 <= found.at <= time.time() + 0.01


def test_command_trains_although_only_one_of_its_ranks_reports(tmp_path: Path) -> None:
    command = config(tmp_path, **{Env.COMMAND: '["train.py"]', Env.TASK: None})
    launch = prepare(command, members(command), tmp_path, {})
    writer = StatusWriter(command, Clock())
    writer.start_attempt(members(command), [])
    writer.launched()
    write(launch.heartbeats_dir, heartbeat(phase=RankPhase.STARTING))
    for rank in ("0", "1"):
        home = launch.log_dir / "run" / "attempt_0" / rank
        home.mkdir(parents=True)
        (home / "stderr.log").touch()
    writer.update_from_ranks(launch)
    phases = [writer.status.phase]
    write(launch.heartbeats_dir, heartbeat(progress=Progress(step=7)))
    writer.update_from_ranks(launch)
    phases.append(writer.status.phase)
    assert phases == [AgentPhase.STARTING, AgentPhase.TRAINING]
    assert writer.status.progress == Progress(step=7)
