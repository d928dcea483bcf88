"""Tests of trackers: one tracked run over all attempts, no step twice, no failure ends a run."""

import inspect
import json
import struct
import threading
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from ddp_trainer.config.settings import resolve
from ddp_trainer.errors import InputError
from ddp_trainer.trackers import trackers as module
from ddp_trainer.trackers.tensorboard import FOLDER, masked_crc32c
from ddp_trainer.trackers.trackers import Trackers, check_installed
from ddp_trainer.train import close
from tests.trainer.runs import trained
from tests.trainer.trackers import stubs

ALL: list[Any] = ["tensorboard", "mlflow", "wandb"]


def attempt(directory: Path, number: int, *steps: int, end: str = "stop", **config: Any) -> Any:
    """Log some steps in one attempt. Return the warnings."""
    names: list[Any] = config.pop("names", ALL)
    given = {"epochs": number, "optimizer": {"lr": 0.1}} | config
    one = Trackers(names, directory, attempt=number, run_name="digits", config=given)
    warnings: list[str] = []
    one.warn_with(warnings.append)
    for step in steps:
        one.write("progress", {"step": step, "loss": 0.5, "lr": None, "loss_parts": {"k@1": 2.0}})
        one.write("note", {"message": "no values"})
    one.write(end, {})
    one.close()
    return warnings


def scalars(directory: Path) -> list[tuple[int, dict[str, float]]]:
    """Return the steps and values of all event files, in the order in which they are read."""
    files = sorted((directory / FOLDER).iterdir())
    return [found for file in files for event in records(file) if (found := parsed(event))]


def records(file: Path) -> Iterator[bytes]:
    data = file.read_bytes()
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        event = data[12 : 12 + length]
        checksums = struct.unpack("<I", data[8:12]) + struct.unpack("<I", data[12 + length :][:4])
        assert checksums == (masked_crc32c(data[:8]), masked_crc32c(event))
        yield event
        data = data[16 + length :]


def fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Decode a protobuf message whose keys and lengths need one byte, or two."""
    while message:
        key, message = message[0], message[1:]
        if key & 7 in (0, 2):
            number, message = (
                (message[0], message[1:])
                if message[0] < 128
                else (message[0] - 128 + (message[1] << 7), message[2:])
            )
        match key & 7:
            case 0:
                value: Any = number
            case 1:
                (value,), message = struct.unpack("<d", message[:8]), message[8:]
            case 2:
                value, message = message[:number], message[number:]
            case _:
                (value,), message = struct.unpack("<f", message[:4]), message[4:]
        yield key >> 3, value


def parsed(event: bytes) -> tuple[int, dict[str, float]] | None:
    found = dict(fields(event))
    assert found[1] > 1e9, "the time"
    if 3 in found:
        assert found[3] == b"brain.Event:2"
        return None
    pairs = [dict(fields(value)) for _, value in fields(found[5])]
    return found[2], {pair[1].decode(): pair[2] for pair in pairs}


def test_record_checksum_equals_that_of_tensorflow() -> None:
    # CRC-32C of "123456789" is 0xE3069283 (RFC 3720, appendix B.4 describes the polynomial).
    rotated = ((0xE3069283 >> 15) | (0xE3069283 << 17)) & 0xFFFFFFFF
    assert masked_crc32c(b"123456789") == (rotated + 0xA282EAD8) & 0xFFFFFFFF


def test_attempts_log_to_one_tracked_run_and_no_step_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = stubs.install(monkeypatch)
    assert attempt(tmp_path, 1, 100, 200, 300) == []
    assert attempt(tmp_path, 2, 200, 300, 400, world_size=4) == []
    assert attempt(tmp_path, 3, 400, 500, end="summary") == []
    steps = [100, 200, 300, 400, 500]
    found = scalars(tmp_path)
    assert [step for step, _ in found] == steps
    assert found[0][1] == {"train/loss": 0.5, "train/parts/k@1": 2.0}

    def of(name: str, *keys: str) -> list[Any]:
        return [[given.get(key) for key in keys] for called, given in calls if called == name]

    assert [step for (step,) in of("mlflow.log_metrics", "step")] == steps
    assert of("mlflow.log_metrics", "metrics")[0] == [{"train/loss": 0.5, "train/parts/k_1": 2.0}]
    assert of("mlflow.start_run", "run_id", "run_name") == [
        [None, "digits"],
        ["new-1", None],
        ["new-1", None],
    ]
    assert of("mlflow.log_params", "params") == [[{"epochs": "1", "optimizer.lr": "0.1"}]]
    assert of("mlflow.end_run", "status") == [["KILLED"], ["KILLED"], ["FINISHED"]]
    assert [step for (step,) in of("wandb.Run.log", "step")] == steps
    ids = {run_id for (run_id,) in of("wandb.init", "id")}
    assert len(of("wandb.init", "id")) == 3
    assert len(ids) == 1
    assert of("wandb.init", "resume", "name", "dir")[0] == ["allow", "digits", str(tmp_path)]
    assert of("wandb.Run.finish", "exit_code") == [[1], [1], [0]]
    kept = json.loads((tmp_path / "trackers.json").read_text())
    assert kept == {"step": 500, "runs": {"mlflow": "new-1", "wandb": ids.pop()}}


def test_evaluation_of_a_reported_step_is_logged(tmp_path: Path) -> None:
    one = Trackers(["tensorboard"], tmp_path, attempt=1, run_name="x", config={})
    one.write("progress", {"step": 7, "loss": 0.5})
    one.write("eval", {"step": 7, "metrics": {"accuracy": 0.75, "broken": None}})
    one.close()
    assert scalars(tmp_path) == [(7, {"train/loss": 0.5}), (7, {"eval/accuracy": 0.75})]


def test_failing_tracker_causes_one_warning_and_stops_no_other_tracker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = stubs.install(monkeypatch)

    def refuse(**_: Any) -> None:
        raise ConnectionError("no route to host\nmore")

    monkeypatch.setattr("mlflow.start_run", refuse)
    (warning,) = attempt(tmp_path, 1, 100, 200)
    assert warning == (
        "log.trackers: mlflow failed: ConnectionError: no route to host; training continues, and"
        " later failures of this tracker are not reported"
    )
    assert [step for step, _ in scalars(tmp_path)] == [100, 200]
    assert sum(name == "wandb.Run.log" for name, _ in calls) == 2


def test_unusable_directory_causes_one_warning_of_each_tracker(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    warnings = attempt(tmp_path / "file", 1, 1, 2, names=["tensorboard"])
    assert [text.split(":")[1] for text in warnings] == [" trackers failed", " tensorboard failed"]


def test_hanging_tracker_delays_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stubs.install(monkeypatch)
    monkeypatch.setattr(module, "CLOSE_SECONDS", 0.05)
    hangs, released = threading.Event(), threading.Event()

    def hang(**_: Any) -> None:
        hangs.set()
        released.wait(60)

    monkeypatch.setattr("wandb.init", hang)
    one = Trackers(["wandb"], tmp_path, attempt=1, run_name="x", config={})
    for step in range(3000):
        one.write("progress", {"step": step, "loss": 0.5})
    assert hangs.wait(10)
    one.close()
    released.set()


def test_tracker_whose_package_is_missing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_installed(["tensorboard"])
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(InputError) as error:
        check_installed(["tensorboard", "mlflow"])
    assert str(error.value) == (
        "config: log.trackers names mlflow, but this image has no package mlflow; install it in the"
        " image, or remove it from log.trackers"
    )


def test_trackers_require_a_checkpoint_directory() -> None:
    with pytest.raises(InputError, match=r"^config: log.trackers requires checkpoint.directory"):
        resolve({"log": {"trackers": ["wandb"]}})


@pytest.mark.slow
def test_run_logs_progress_and_evaluations(tmp_path: Path) -> None:
    log = {"every_steps": 2, "trackers": ["tensorboard"]}
    checkpoint = {"directory": str(tmp_path)}
    for most in (4, 6):
        run = trained("sample_tasks:build", max_steps=most, log=log, checkpoint=checkpoint)
        close(run, stopped=False)
    found = scalars(tmp_path)
    assert [step for step, values in found if "train/loss" in values] == [2, 4, 6]
    assert [step for step, values in found if "eval/loss" in values] == [2, 4, 6]
    assert found[0][1].keys() >= {"train/loss", "train/lr", "train/epoch"}


@pytest.mark.parametrize("package", ["mlflow", "wandb"])
def test_recorded_function_signatures_equal_those_of_the_installed_package(package: str) -> None:
    module: Any = pytest.importorskip(package)
    for name, recorded in stubs.RECORDED.items():
        if name.startswith(package):
            function = attrgetter(name.partition(".")[2])(module)
            assert [p for p in inspect.signature(function).parameters if p != "self"] == recorded
