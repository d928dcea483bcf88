"""Another pod on the claim plants links, pipes and odd files in a run's directory.

Each attack with a link or a pipe is first shown to succeed with the protection off.
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ddp_trainer.checkpoint.fence import FENCE, holder
from ddp_trainer.checkpoint.format import (
    MANIFEST,
    MODEL,
    OPTIMIZER_REST,
    CheckpointName,
    names_in,
)
from ddp_trainer.checkpoint.manager import CheckpointManager
from ddp_trainer.checkpoint.store import directory as store_directory
from ddp_trainer.checkpoint.store.base import Entry, Part
from ddp_trainer.checkpoint.store.directory import PendingFolder
from ddp_trainer.config import CheckpointConfig
from ddp_trainer.errors import InputError
from ddp_trainer.observe.history_writer import HistoryWriter
from ddp_trainer.observe.trace import Trace
from ddp_trainer.ranks import flight_recorder
from ddp_trainer.trackers.tensorboard import TensorBoard
from ddp_trainer.trackers.trackers import STATE_FILE, Trackers
from ddp_wire import files
from ddp_wire.contract import HISTORY_FILE, PROFILE_REQUEST
from tests.trainer.checkpoint.opening import open_checked
from tests.trainer.checkpoint.test_manager import chosen, saved, whole
from tests.trainer.planted import content, hangs, unprotected

Act = Callable[[Path], object]


def write_history(directory: Path) -> None:
    history = HistoryWriter(directory)
    history.write("start", 1.0, '{"time": 1.0}\n')
    history.close()


class FakeProfile:
    def stop(self) -> None:
        pass

    def export_chrome_trace(self, path: str) -> None:
        Path(path).write_text("{}")


def write_profile(directory: Path) -> None:
    trace: Any = Trace(directory)
    trace._profile = FakeProfile()
    trace.end(3)


def write_flight_record(directory: Path) -> None:
    flight_recorder.dump(0, {flight_recorder.PREFIX: f"{directory}/{flight_recorder.FOLDER}/rank-"})


def open_run(directory: Path) -> None:
    CheckpointManager(CheckpointConfig(directory=str(directory))).open(1, {})


WRITES: dict[str, tuple[str, str, Act]] = {
    "history": (HISTORY_FILE, "secret", write_history),
    "TensorBoard": ("tensorboard", ".", lambda directory: TensorBoard(directory, 1)),
    "profile": ("profiles", ".", write_profile),
    "folder of flight records": (flight_recorder.FOLDER, ".", write_flight_record),
    "flight record": (f"{flight_recorder.FOLDER}/rank-0", "secret", write_flight_record),
    "run's directory": (".", ".", open_run),
}
"""Path of a link in the run's directory, its target among the victim's files, and the writer."""


def attack(home: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Plant a link, let the trainer write, and return the files that it led to."""
    claim, victim = home / "claim", home / "victim"
    victim.mkdir(parents=True)
    (victim / "secret").write_text("not yours\n")
    link, target, act = WRITES[name]
    run = claim / "run"
    planted = Path(os.path.normpath(run / link))
    planted.parent.mkdir(parents=True)
    planted.symlink_to(victim / target)
    monkeypatch.setattr(files, "CHECKPOINT_MOUNT", str(claim))
    with contextlib.suppress(OSError, InputError):
        act(run)
    return content(victim)


@pytest.mark.parametrize("name", WRITES)
def test_trainer_writes_through_no_symbolic_link(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    untouched = {"secret": b"not yours\n"}
    assert attack(tmp_path / "on", name, monkeypatch) == untouched
    unprotected(monkeypatch)
    assert attack(tmp_path / "off", name, monkeypatch) != untouched, "without the protection"


def test_symbolic_link_in_place_of_the_runs_directory_is_refused_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "CHECKPOINT_MOUNT", str(tmp_path / "claim"))
    run = tmp_path / "claim" / "run"
    run.parent.mkdir()
    run.symlink_to(tmp_path)
    with pytest.raises(InputError) as caught:
        open_run(run)
    assert str(caught.value) == (
        f"checkpoint: cannot use {run}: [Errno 40] must be a folder, not a link, pipe or device;"
        f" remove it: '{run}'"
    )


def attempt_of(directory: Path) -> int | None:
    """Return the attempt that holds a run's directory."""
    held = holder(directory)
    return held["attempt"] if held else None


def test_directory_outside_a_claim_may_be_a_symbolic_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "latest").symlink_to(tmp_path / "real")
    open_run(tmp_path / "latest")
    assert attempt_of(tmp_path / "real") == 1


def swap_while_saving(home: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Replace the pending folder by a link after its first file. Return the victim's files."""
    run, victim = home / "run", home / "victim"
    for folder in (run, victim):
        folder.mkdir(parents=True)
    (victim / "letter.txt").write_text("not yours")
    put = PendingFolder.put

    def swap_and_put(self: PendingFolder, file: str, parts: Iterable[Part]) -> Entry:
        pending = run / "step-00000007.attempt-1.tmp"
        if file != MODEL and not pending.is_symlink():
            pending.rename(run / "moved")
            pending.symlink_to(victim)
        return put(self, file, parts)

    with monkeypatch.context() as patch:
        patch.setattr(PendingFolder, "put", swap_and_put)
        with contextlib.suppress(OSError):
            saved(run, 7)
    return content(victim)


def test_checkpoint_stays_in_its_folder_when_a_link_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    untouched = {"letter.txt": b"not yours"}
    assert swap_while_saving(tmp_path / "on", monkeypatch) == untouched
    assert [path.name for path in (tmp_path / "on" / "run").iterdir()] == ["moved"]

    @contextlib.contextmanager
    def by_path(path: Path, _: Path) -> Iterator[Path]:
        yield path

    monkeypatch.setattr(store_directory, "held_path", by_path)
    assert swap_while_saving(tmp_path / "off", monkeypatch) != untouched, "without the protection"


def request_profile(directory: Path) -> None:
    Trace(directory).poll_request(lambda _: None)


def read_trackers(directory: Path) -> None:
    Trackers([], directory, attempt=1, run_name="run", config={})._read_state()


READS: dict[str, Act] = {
    FENCE: open_run,
    PROFILE_REQUEST: request_profile,
    STATE_FILE: read_trackers,
    f"step-00000020.attempt-1/{MANIFEST}": chosen,
    "step-00000020.attempt-1/empty": chosen,
}
"""Files in the run's directory, each with its reader."""


def reads_a_pipe(run: Path, name: str) -> bool:
    """Put a pipe in the place of a file, and return whether the reader of the file blocks."""
    run.mkdir()
    saved(run, 10, 20)
    manifest = run / "step-00000020.attempt-1" / MANIFEST
    document = json.loads(manifest.read_text())
    document["files"]["empty"] = {"bytes": 0, "crc32": "00000000"}
    manifest.write_text(json.dumps(document))
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)

    def act() -> None:
        with contextlib.suppress(OSError, ValueError):
            READS[name](run)

    return hangs(run / name, act)


@pytest.mark.parametrize("name", READS)
def test_trainer_does_not_wait_on_a_planted_pipe(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not reads_a_pipe(tmp_path / "on", name)
    unprotected(monkeypatch)
    assert reads_a_pipe(tmp_path / "off", name), "without the protection"


def test_pipe_in_place_of_the_fence_is_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / FENCE)
    open_run(tmp_path)
    assert attempt_of(tmp_path) == 1


def test_refused_profile_request_is_deleted_with_a_warning(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("{}")
    (tmp_path / PROFILE_REQUEST).symlink_to(tmp_path / "secret")
    warnings: list[str] = []
    Trace(tmp_path).poll_request(warnings.append)
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]
    assert len(warnings) == 1
    assert "must be a regular file, not a link, pipe or device" in warnings[0]


def test_link_in_place_of_a_pending_checkpoint_is_removed_but_its_target_stays(
    tmp_path: Path,
) -> None:
    run, victim = tmp_path / "run", tmp_path / "victim"
    saved_in = run / "step-00000030.attempt-2.tmp"
    for folder in (run, victim):
        folder.mkdir()
    (victim / "secret").write_text("not yours")
    saved_in.symlink_to(victim)
    manager = CheckpointManager(CheckpointConfig(directory=str(run)))
    open_checked(manager, 2, {})
    assert manager.save(whole(30))
    assert content(victim) == {"secret": b"not yours"}
    assert names_in(run) == [CheckpointName(30, 2)]


def test_retention_removes_a_symbolic_link_but_not_its_target(tmp_path: Path) -> None:
    run, victim = tmp_path / "run", tmp_path / "victim"
    for folder in (run, victim):
        folder.mkdir()
    saved(run, 10)
    (victim / "secret").write_text("not yours")
    (run / "step-00000001.attempt-1.broken").symlink_to(victim)
    manager = CheckpointManager(CheckpointConfig(directory=str(run), keep=1))
    open_checked(manager, 2, {})
    manager.save(whole(30))
    assert content(victim) == {"secret": b"not yours"}
    assert names_in(run) == [CheckpointName(30, 2)]


def test_dangling_link_blocks_one_checkpoint_name_and_is_reported(tmp_path: Path) -> None:
    (tmp_path / "step-00000005.attempt-1").symlink_to(tmp_path / "nothing")
    with pytest.raises(FileExistsError, match=r"step-00000005\.attempt-1 exists already"):
        saved(tmp_path, 5)


def test_start_over_skips_a_dangling_link(tmp_path: Path) -> None:
    saved(tmp_path, 10)
    (tmp_path / "step-00000010.attempt-1" / MANIFEST).unlink()
    (tmp_path / "set-aside-1").symlink_to(tmp_path / "nothing")
    manager = CheckpointManager(CheckpointConfig(directory=str(tmp_path), start_over=True))
    assert open_checked(manager, 2, {})["resume"] is None
    assert names_in(tmp_path / "set-aside-2") == [CheckpointName(10, 1)]


def test_failed_save_names_the_path_of_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = PendingFolder.put

    def full(self: PendingFolder, file: str, parts: Iterable[Part]) -> Entry:
        if file == OPTIMIZER_REST:
            raise OSError(28, "No space left on device", str(self.folder / file))
        return put(self, file, parts)

    monkeypatch.setattr(PendingFolder, "put", full)
    with pytest.raises(OSError, match="No space") as caught:
        saved(tmp_path, 6)
    assert caught.value.filename == f"{tmp_path}/step-00000006.attempt-1.tmp/optimizer.json"


def test_torch_writes_no_flight_record_through_a_symbolic_link(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / flight_recorder.FOLDER
    assert flight_recorder._may_dump(folder / "rank-0", tmp_path)
    (folder / "rank-0").symlink_to(tmp_path / "secret")
    assert not flight_recorder._may_dump(folder / "rank-0", tmp_path)
    assert "torch writes no flight record: " in capfd.readouterr().err


def test_agent_and_trainer_refuse_paths_with_two_dots_that_leave_the_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "CHECKPOINT_MOUNT", str(tmp_path / "claim"))
    with pytest.raises(InputError, match="must be a folder"):
        open_run(tmp_path / "claim" / ".." / "other")
    assert not (tmp_path / "other").exists()
