"""Tests of starts on a volume that fails, and of unreadable checkpoints."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from ddp_trainer.checkpoint import (
    contents,
    initial,
    load,
    parts,
    retention,
    stream,
    volume,
)
from ddp_trainer.checkpoint import format as format_
from ddp_trainer.checkpoint.format import MANIFEST, CheckpointName
from ddp_trainer.checkpoint.header import read_header
from ddp_trainer.checkpoint.manager import CheckpointManager
from ddp_trainer.checkpoint.store import directory as store_directory
from ddp_trainer.config import CheckpointConfig
from ddp_trainer.errors import InputError, ReportedError, VolumeError, reported_error
from ddp_wire.contract import ExitCode
from ddp_wire.files import replace_file
from tests.trainer.checkpoint.opening import open_checked
from tests.trainer.checkpoint.test_manager import saved, state, whole

CPU = torch.device("cpu")


class FakeSleep:
    """A sleep that only records its seconds."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


class Fault:
    """A function that fails the first few times that it is called."""

    def __init__(self, real: Callable[..., Any], code: int, times: int) -> None:
        self.real, self.code, self.left = real, code, times

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if self.left > 0:
            self.left -= 1
            raise OSError(self.code, os.strerror(self.code))
        return self.real(*arguments, **named)


ALWAYS = 10**6


def new_manager(directory: Path, **settings: Any) -> tuple[CheckpointManager, FakeSleep]:
    sleep = FakeSleep()
    return CheckpointManager(CheckpointConfig(directory=str(directory), **settings), sleep), sleep


def listing(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name.startswith("step-"))


def damage(directory: Path, step: int) -> None:
    path = directory / f"step-{step:08d}.attempt-1" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def set_format(directory: Path, step: int, number: Any) -> None:
    path = directory / f"step-{step:08d}.attempt-1" / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": number}))


READS = ["crc32_of", "read_json", "names_in"]


@pytest.mark.parametrize("function", READS)
@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT])
def test_burst_of_read_errors_renames_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, code: int
) -> None:
    saved(tmp_path, 10, 20)
    fault = Fault(getattr(format_, function), code, times=3)
    for module in (format_, contents, load, retention):
        if hasattr(module, function):
            monkeypatch.setattr(module, function, fault)
    checkpoints, sleep = new_manager(tmp_path)
    opened = open_checked(checkpoints, 2, {})
    assert opened["resume"]["step"] == 20
    assert opened["skipped"] == []
    assert sleep.seconds == [0.5, 1.0, 2.0], "each wait is longer than the one before"
    assert listing(tmp_path) == ["step-00000010.attempt-1", "step-00000020.attempt-1"]


@pytest.mark.parametrize("resumed", [False, True])
def test_time_that_cannot_be_read_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resumed: bool
) -> None:
    checkpoints, _ = new_manager(tmp_path)
    open_checked(checkpoints, 1, {})
    assert checkpoints.save(whole(10))
    if resumed:
        checkpoints, _ = new_manager(tmp_path)
        open_checked(checkpoints, 2, {})
    known = checkpoints.newest
    fault = Fault(Path.stat, errno.EIO, times=ALWAYS)
    monkeypatch.setattr(Path, "stat", fault)
    assert known is not None
    assert checkpoints.newest == known


def test_lasting_read_error_is_a_volume_error_and_changes_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, 10, 20)
    monkeypatch.setattr(format_, "crc32_of", Fault(format_.crc32_of, errno.EIO, ALWAYS))
    checkpoints, sleep = new_manager(tmp_path, start_over=True)
    with pytest.raises(VolumeError) as raised:
        open_checked(checkpoints, 2, {})
    path = tmp_path / "step-00000020.attempt-1"
    assert str(raised.value) == (
        f"checkpoint: cannot read {path}: [Errno 5] Input/output error; an error of the"
        " volume is no evidence of damage, so the checkpoint stays as it is"
    )
    assert raised.value.code == ExitCode.VOLUME_FAILED
    assert sleep.seconds == list(volume.RETRY_WAITS)
    assert listing(tmp_path) == ["step-00000010.attempt-1", "step-00000020.attempt-1"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.ESTALE, errno.EDQUOT])
def test_volume_that_cannot_be_written_at_the_start_is_an_infrastructure_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(store_directory, "replace_file", Fault(replace_file, code, ALWAYS))
    checkpoints, sleep = new_manager(tmp_path / "run")
    with pytest.raises(VolumeError, match=f"cannot use {tmp_path / 'run'}.*{os.strerror(code)}"):
        open_checked(checkpoints, 1, {})
    assert sleep.seconds == list(volume.RETRY_WAITS)


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR])
def test_volume_error_that_the_user_must_correct_is_bad_input_without_a_retry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(store_directory, "replace_file", Fault(replace_file, code, ALWAYS))
    checkpoints, sleep = new_manager(tmp_path)
    with pytest.raises(InputError, match="cannot use"):
        open_checked(checkpoints, 1, {})
    assert sleep.seconds == []


@pytest.mark.parametrize("times", [2, ALWAYS])
def test_read_error_after_the_check_is_a_volume_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    saved(tmp_path, 3)
    checkpoints, sleep = new_manager(tmp_path)
    open_checked(checkpoints, 2, {})
    monkeypatch.setattr(parts, "read_header", Fault(read_header, errno.EIO, times))
    if times == 2:
        assert checkpoints.receive(CPU).state.step == 3
        assert sleep.seconds == [0.5, 1.0]
    else:
        with pytest.raises(VolumeError, match=r"cannot read .*step-00000003.*output error"):
            checkpoints.receive(CPU)


@pytest.mark.parametrize("times", [2, ALWAYS])
def test_read_error_of_a_tensor_is_a_volume_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    saved(tmp_path, 3)
    checkpoints, sleep = new_manager(tmp_path)
    open_checked(checkpoints, 2, {})
    tensors = checkpoints.receive(CPU).snapshot.model
    monkeypatch.setattr(stream, "read_into", Fault(stream.read_into, errno.EIO, times))
    if times == 2:
        weights = dict(state(3)[0].named_parameters())
        assert all(weights[name].equal(tensor) for name, tensor in tensors.items())
        assert sleep.seconds == [0.5, 1.0]
    else:
        with pytest.raises(VolumeError, match=r"cannot read .*step-00000003.*output error"):
            list(tensors.items())


def test_error_of_torch_when_it_maps_a_file_is_a_volume_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, 3)
    sleep = FakeSleep()

    def refuse(path: Path, **_: object) -> None:
        raise RuntimeError(f"unable to open file <{path}> in read-only mode: Stale handle (116)")

    monkeypatch.setattr(stream, "safe_open", refuse)
    with pytest.raises(VolumeError, match=r"config: init_from: cannot read .*Stale handle"):
        initial.load_initial(state(3)[0], str(tmp_path), CPU, strict=True, sleep=sleep)
    assert sleep.seconds == list(volume.RETRY_WAITS)


def test_read_error_of_initial_weights_is_a_volume_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, 3)
    sleep = FakeSleep()
    monkeypatch.setattr(stream, "safe_open", Fault(safe_open, errno.ESTALE, ALWAYS))
    with pytest.raises(VolumeError, match="config: init_from: cannot read"):
        initial.load_initial(state(3)[0], str(tmp_path), CPU, strict=True, sleep=sleep)
    assert sleep.seconds == list(volume.RETRY_WAITS)


def test_error_inside_safetensors_keeps_its_errno() -> None:
    full = volume.os_error(ValueError("Error while serializing: No space left (os error 28)"))
    assert full.errno == errno.ENOSPC
    assert volume.os_error(ValueError("invalid header")).errno is None
    stale = volume.os_error(RuntimeError("unable to open file </a (3)/b>: Stale handle (116)"))
    assert stale.errno == errno.ESTALE


def test_volume_error_that_the_user_must_correct_is_an_input_error() -> None:
    full, read_only = (OSError(code, "") for code in (errno.ENOSPC, errno.EROFS))
    assert type(volume.volume_error("x", full, ReportedError)) is VolumeError
    assert type(volume.volume_error("x", read_only, ReportedError)) is ReportedError
    assert type(volume.volume_error("x", read_only)) is InputError


def test_other_ranks_raise_the_same_error_as_rank_0() -> None:
    assert isinstance(reported_error(ExitCode.VOLUME_FAILED, "x"), VolumeError)
    assert isinstance(reported_error(ExitCode.BAD_INPUT, "x"), InputError)
    assert type(reported_error(ExitCode.FAILED, "x")) is ReportedError


class Forbidden:
    """`crc32_of` of a process that has no right to read some of the checkpoints."""

    def __init__(self, real: Callable[[Path], str], *steps: int) -> None:
        self.real = real
        self.names = {str(CheckpointName(step, 1)) for step in steps}

    def __call__(self, path: Path) -> str:
        if path.parent.name in self.names:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return self.real(path)


def test_unreadable_checkpoint_is_renamed_and_an_older_one_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, 10, 20)
    monkeypatch.setattr(format_, "crc32_of", Forbidden(format_.crc32_of, 20))
    checkpoints, _ = new_manager(tmp_path)
    opened = open_checked(checkpoints, 2, {})
    assert opened["resume"]["step"] == 10
    path = tmp_path / "step-00000020.attempt-1"
    (sentence,) = opened["skipped"]
    assert sentence == (
        f"checkpoint {path} is not usable: it cannot be read (Permission denied); it was renamed to"
        " step-00000020.attempt-1.broken; trying the next older checkpoint"
    )


@pytest.mark.parametrize("start_over", [False, True])
def test_missing_rights_to_all_checkpoints_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, start_over: bool
) -> None:
    saved(tmp_path, 10, 20)
    damage(tmp_path, 10)
    monkeypatch.setattr(format_, "crc32_of", Forbidden(format_.crc32_of, 20))
    checkpoints, _ = new_manager(tmp_path, start_over=start_over)
    with pytest.raises(InputError, match=r"step-00000020.* stays as it is: it cannot be read"):
        open_checked(checkpoints, 2, {})
    assert listing(tmp_path) == ["step-00000010.attempt-1", "step-00000020.attempt-1"]


@pytest.mark.parametrize("start_over", [False, True])
@pytest.mark.parametrize("number", [3, 99, "2.1"])
def test_checkpoint_of_an_unknown_format_is_refused_and_left_as_it_is(
    tmp_path: Path, number: Any, *, start_over: bool
) -> None:
    saved(tmp_path, 10, 20, 30)
    damage(tmp_path, 30)
    set_format(tmp_path, 20, number)
    checkpoints, sleep = new_manager(tmp_path, start_over=start_over)
    with pytest.raises(InputError) as raised:
        open_checked(checkpoints, 2, {})
    assert str(raised.value) == (
        f"checkpoint: {tmp_path / 'step-00000020.attempt-1'} has format {number}, but this version"
        " of ddp-trainer reads only formats 1 and 2; resume with the version that wrote it, or"
        " set another checkpoint directory"
    )
    assert sleep.seconds == []
    assert listing(tmp_path) == [f"step-000000{step}.attempt-1" for step in (10, 20, 30)]


def test_run_stops_if_no_checkpoint_is_usable(tmp_path: Path) -> None:
    saved(tmp_path, 10, 20)
    damage(tmp_path, 10)
    (tmp_path / "step-00000020.attempt-1" / "state.json").unlink()
    for _ in range(2):
        checkpoints, _ = new_manager(tmp_path)
        with pytest.raises(InputError) as raised:
            open_checked(checkpoints, 2, {})
        assert str(raised.value) == (
            f"checkpoint: no checkpoint in {tmp_path} is usable"
            " (step-00000020.attempt-1: state.json is missing; step-00000010.attempt-1:"
            " model.safetensors does not match its CRC32); restore one of them, or set"
            " checkpoint.start_over (in a job: checkpoint.startOver) to train from the beginning"
        )
        assert listing(tmp_path) == ["step-00000010.attempt-1", "step-00000020.attempt-1"]


def test_damaged_checkpoints_that_were_renamed_earlier_still_stop_the_run(tmp_path: Path) -> None:
    saved(tmp_path, 20)
    (tmp_path / "step-00000020.attempt-1").rename(tmp_path / "step-00000020.attempt-1.broken")
    checkpoints, _ = new_manager(tmp_path)
    with pytest.raises(InputError, match=r"step-00000020\.attempt-1\.broken: it was damaged"):
        open_checked(checkpoints, 2, {})


def test_directory_with_only_unfinished_checkpoints_starts_from_the_beginning(
    tmp_path: Path,
) -> None:
    (tmp_path / "step-00000020.attempt-1.tmp").mkdir()
    checkpoints, _ = new_manager(tmp_path)
    assert open_checked(checkpoints, 2, {})["resume"] is None


def test_start_over_protects_the_old_checkpoints_from_retention(tmp_path: Path) -> None:
    saved(tmp_path, 10, 20)
    damage(tmp_path, 20)
    (tmp_path / "step-00000010.attempt-1").rename(tmp_path / "step-00000010.attempt-1.broken")
    (tmp_path / "set-aside-1").mkdir()
    checkpoints, _ = new_manager(tmp_path, start_over=True, keep=1)
    opened = open_checked(checkpoints, 2, {})
    assert opened["resume"] is None
    (sentence,) = opened["skipped"]
    assert sentence == (
        "training starts from the beginning, because checkpoint.start_over is set and no checkpoint"
        f" in {tmp_path} is usable (step-00000020.attempt-1: model.safetensors does not match its"
        " CRC32; step-00000010.attempt-1.broken: it was damaged at an earlier start); they were"
        f" moved to {tmp_path / 'set-aside-2'}"
    )
    for step in (5, 15, 25):
        taken = load.receive(tmp_path / "set-aside-2" / "step-00000020.attempt-1", CPU)
        checkpoints.save(whole(step, taken.snapshot))
    assert listing(tmp_path) == ["step-00000025.attempt-2"]
    assert listing(tmp_path / "set-aside-2") == [
        "step-00000010.attempt-1.broken",
        "step-00000020.attempt-1",
    ]
    # The next attempt resumes as usual, although the setting is still there.
    again, _ = new_manager(tmp_path, start_over=True)
    assert open_checked(again, 3, {})["resume"]["step"] == 25


def test_start_over_resumes_from_a_usable_checkpoint(tmp_path: Path) -> None:
    saved(tmp_path, 10, 20)
    damage(tmp_path, 20)
    checkpoints, _ = new_manager(tmp_path, start_over=True)
    assert open_checked(checkpoints, 2, {})["resume"]["step"] == 10
    assert listing(tmp_path) == ["step-00000010.attempt-1", "step-00000020.attempt-1.broken"]


def test_newest_checkpoint_is_loaded_with_one_list_of_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, 10, 20)
    checkpoints, _ = new_manager(tmp_path)
    lists: list[Path] = []

    def counted(directory: Path) -> list[CheckpointName]:
        lists.append(directory)
        return format_.names_in(directory)

    monkeypatch.setattr(load, "names_in", counted)
    assert open_checked(checkpoints, 2, {})["resume"]["step"] == 20
    assert lists == [tmp_path]
    assert load.choose(tmp_path).known == [CheckpointName(10, 1), CheckpointName(20, 1)]
