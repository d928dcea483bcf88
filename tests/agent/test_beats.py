"""Beats as the agent reads them: what cannot be read or is of yesterday does not count."""

from pathlib import Path

import pytest

from ddp_agent.beats import all_spawned, all_train, read_beats
from ddp_wire.contract import Beat, CheckpointInfo, Progress, RankPhase
from tests.agent.support import beat


def leave(home: Path, found: Beat) -> None:
    (home / f"{found.local_rank}.json").write_text(found.to_json(), encoding="utf-8")


def test_beats_come_in_the_order_of_local_ranks(tmp_path: Path) -> None:
    for local_rank in (10, 2, 0):
        leave(tmp_path, beat(local_rank=local_rank, rank=local_rank + 4))
    assert [b.local_rank for b in read_beats(tmp_path, 1)] == [0, 2, 10]


def test_a_beat_says_all_that_its_rank_knows(tmp_path: Path) -> None:
    said = beat(
        step=7,
        resumed_from=5,
        progress=Progress(step=7, total_steps=9, loss=0.25, metrics={"accuracy": 0.5}),
        checkpoint=CheckpointInfo(step=5, path="/c/step-5", at=1.5),
    )
    leave(tmp_path, said)
    assert read_beats(tmp_path, 1) == [said]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b'{"attempt": 1}', b"\xff\xfe\x00", beat().to_json()[:-5].encode()],
    ids=["empty", "cut", "list", "null", "fields missing", "no text", "half written"],
)
def test_a_file_that_is_no_beat_is_left_out(tmp_path: Path, content: bytes) -> None:
    leave(tmp_path, beat(local_rank=0))
    (tmp_path / "1.json").write_bytes(content)
    assert [b.local_rank for b in read_beats(tmp_path, 1)] == [0]


def test_a_draft_that_is_not_renamed_yet_is_left_out(tmp_path: Path) -> None:
    (tmp_path / ".0.json.tmp").write_text(beat().to_json())
    (tmp_path / "1.json").mkdir()
    assert read_beats(tmp_path, 1) == []


def test_a_beat_of_another_attempt_is_left_out(tmp_path: Path) -> None:
    leave(tmp_path, beat(attempt=1))
    assert read_beats(tmp_path, 2) == []
    assert len(read_beats(tmp_path, 1)) == 1


def test_before_there_is_a_directory_there_are_no_beats(tmp_path: Path) -> None:
    assert read_beats(tmp_path / "missing", 1) == []


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_beat_with_a_number_that_is_not_finite_is_still_a_beat(
    tmp_path: Path, value: float
) -> None:
    """A diverged run reports nan: it must not look as if it had stopped."""
    progress = Progress(step=7, loss=value, samples_per_second=value, metrics={"accuracy": value})
    leave(tmp_path, beat(progress=progress))
    found = read_beats(tmp_path, 1)
    assert [b.local_rank for b in found] == [0]
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
    ids=["both train", "one is through", "one starts", "one is silent", "both are silent"],
)
def test_a_node_trains_when_all_its_ranks_have_joined(
    phases: list[RankPhase], trains: bool
) -> None:
    beats = [beat(local_rank=i, phase=phase) for i, phase in enumerate(phases)]
    assert all_train(beats, 2) is trains


def test_ranks_of_a_silent_command_count_as_started_by_their_logs(tmp_path: Path) -> None:
    def spawn(local_rank: int) -> None:
        path = tmp_path / "run1" / "attempt_0" / str(local_rank)
        path.mkdir(parents=True)
        (path / "stderr.log").touch()

    assert not all_spawned(tmp_path, 2)
    spawn(0)
    assert not all_spawned(tmp_path, 2)
    spawn(1)
    assert all_spawned(tmp_path, 2)
