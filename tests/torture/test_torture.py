"""A seeded sample of `make torture`, and tests of the torture itself."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.torture import kills, operations
from tests.torture.attempts import RUN, Attempt
from tests.torture.cases import Counts, play, sample
from tests.torture.damage import KINDS, flip
from tests.torture.lab import RESUMED, Bad, Lab, newest_whole, open_lab
from tests.torture.operations import KILL, TEAR, Operation
from tests.torture.writes import ROWS

pytestmark = pytest.mark.slow
SAMPLE = {
    "interruptions": 16, "power": 5, "errors": 16, "flips": 12, "files": 8, "writers": 3,
    "ranks": 3, "clocks": 3, "hostile": 8, "stores": 40,
}  # fmt: skip
"""Number of cases by part."""
GANG_SAMPLE = {"gangs": 4, "shards": 8}
"""The same, for runs of two ranks."""
KILLS = 5


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    opened, folder = open_lab(int(os.environ.get("DDP_SEED") or "0"))
    with folder:
        yield opened


@pytest.mark.timeout(900)
@pytest.mark.parametrize("wanted", [SAMPLE, GANG_SAMPLE], ids=["one rank", "two ranks"])
def test_sample_of_all_faults_has_no_bad_outcome(lab: Lab, wanted: dict[str, int]) -> None:
    counts = Counts()
    play(sample(lab, wanted), counts)
    assert counts.bad == [], f"SEED={lab.seed}"
    assert sum(each.total() for each in counts.seen.values()) == sum(wanted.values())


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_cannot_touch_the_states_in_memory(lab: Lab) -> None:
    counts = Counts()
    play(sample(lab, {"tenants": 3}), counts)
    assert counts.bad == []


@pytest.mark.timeout(900)
def test_killed_runs_end_with_the_bits_of_an_undisturbed_one() -> None:
    assert kills.run(KILLS, int(os.environ.get("DDP_SEED") or "0")) == []


def test_recorder_sees_each_kind_of_change_and_whose_file_it_is(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()

    def act() -> str:
        with (tmp_path / "run" / "a").open("w") as file:
            file.write("content")
            file.flush()
            os.fsync(file.fileno())
        (tmp_path / "run" / "a").rename(tmp_path / "run" / "b")
        (tmp_path / "run" / "b").unlink()
        return "done"

    result = operations.run(act, tmp_path, operations.proceed)
    assert (result.status, result.answer) == (0, "done")
    changes = [one for one in result.operations if one.changes]
    kinds = [one.name.removesuffix("at").removesuffix("at2") for one in changes]
    assert kinds == ["open", "write", "fsync", "rename", "unlink"]
    assert {one.path for one in changes} == {"run/a", "run/b"}


@pytest.mark.parametrize(("how", "left"), [(KILL, b""), (TEAR, b"cont")])
def test_process_is_killed_before_or_inside_an_operation(
    tmp_path: Path, how: str, left: bytes
) -> None:
    (tmp_path / "run").mkdir()
    file = tmp_path / "run" / "a"

    def decide(operation: Operation) -> str | None:
        return how if operation.name == "write" else None

    result = operations.run(lambda: str(file.write_bytes(b"contents")), tmp_path, decide)
    assert result.status == -9
    assert file.read_bytes() == left


def test_operation_fails_with_the_given_error(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()

    def act() -> str:
        with pytest.raises(OSError, match="No space left") as raised:
            (tmp_path / "run" / "a").mkdir()
        return str(raised.value.errno)

    def decide(operation: Operation) -> int | None:
        return errno.ENOSPC if operation.name.startswith("mkdir") else None

    assert operations.run(act, tmp_path, decide).answer == str(errno.ENOSPC)
    assert list((tmp_path / "run").iterdir()) == []


def test_loss_of_power_loses_what_was_not_flushed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()

    def act() -> str:
        for name in ("kept", "torn", "gone"):
            with (tmp_path / "run" / name).open("w") as file:
                file.write("contents")
                file.flush()
                if name != "torn":
                    os.fsync(file.fileno())
            if name != "gone":
                descriptor = os.open(tmp_path / "run", os.O_RDONLY)
                os.fsync(descriptor)
                os.close(descriptor)
        return ""

    result = operations.run(act, tmp_path, operations.proceed)
    assert result.unsynced.lose(tmp_path) == 2
    found = {path.name: path.read_text() for path in (tmp_path / "run").iterdir()}
    assert found == {"kept": "contents", "torn": "cont"}


def test_start_from_a_newer_record_reads_no_file_of_a_checkpoint(lab: Lab) -> None:
    (row,) = (row for row in ROWS if row.name == "a load from memory")
    found = [one for one in row.recorded(lab) if one.path.startswith(f"{RUN}/")]
    read = {one.path for one in found if one.name in {"read", "pread64", "readv"}}
    assert read <= {f"{RUN}/FENCE.json", f"{RUN}/history.jsonl"}
    inside = [one for one in found if one.path.startswith(f"{RUN}/step-")]
    assert [one.path for one in inside] == [f"{RUN}/step-00000008.attempt-1"]
    assert "open" not in inside[0].name  # A look at its time.


def test_verdict_finds_a_state_that_was_never_saved(lab: Lab) -> None:
    other = Attempt(1, memory=False, fail_after=9, settings={"clip_norm": 0.01})
    home = lab.copy(lab.template("of another run", other))
    with pytest.raises(Bad, match="silent bad load: the state at step 8 is none of the run"):
        lab.start(home, Attempt(2, memory=False))


def test_verdict_finds_a_start_from_an_older_state(lab: Lab) -> None:
    row = ROWS[0]
    home = row.home(lab)
    assert newest_whole(home, row.next) == 8
    (home / "run" / "step-00000008.attempt-1").rename(home / "hidden")
    run = Attempt(2, memory=False)
    assert lab.start(home, run) == RESUMED
    (home / "hidden").rename(home / "run" / "step-00000008.attempt-1")
    assert newest_whole(home, run) == 8


def test_flipped_bit_makes_a_state_incomplete(lab: Lab) -> None:
    kind = KINDS[0]
    home = kind.home(lab)
    flip(f"{kind.newest}/model.safetensors", 5000, home)
    assert newest_whole(home, kind.next) == 4
