"""Tests of the state of a run on a device, with events that stand for those of a GPU."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from ddp_trainer.checkpoint import record_writer
from ddp_trainer.run import device_state, survivors
from ddp_trainer.run.device_state import DeviceState, keeps_state, why_not_kept
from ddp_trainer.run.survivors import Survivor
from ddp_trainer.train import loop
from tests.trainer.runs import opened

FAILS = {"samples": 50, "die_rank": 0, "die_after": 6, "die_how": "raise"}
GPU, CPU = torch.device("cuda"), torch.device("cpu")


class Device:
    """A device whose main stream may stop, as that of a rank that waits for a lost one."""

    def __init__(self) -> None:
        self.recorded = 0
        self.stops_at: int | None = None
        """Number of the event before which the main stream stops. None if it does not."""
        self.failed = False
        self.stopped = threading.Event()
        self.released = threading.Event()
        self.in_stream = False

    @contextmanager
    def stream(self) -> Iterator[None]:
        self.in_stream = True
        yield
        self.in_stream = False

    def event(self) -> "DeviceEvent":
        return DeviceEvent(self)


class DeviceEvent:
    def __init__(self, device: Device) -> None:
        self._device = device
        self._number = -1

    def record(self) -> None:
        self._number, self._device.recorded = self._device.recorded, self._device.recorded + 1

    def query(self) -> bool:
        if self._device.failed:
            raise RuntimeError("CUDA error: unspecified launch failure")
        stops = self._device.stops_at
        return stops is None or self._number < stops

    def synchronize(self) -> None:
        if not self.query():
            self._device.stopped.set()
            self._device.released.wait()


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    found = Device()
    monkeypatch.setattr(survivors, "state_on", lambda _: DeviceState(found.event, found.stream))
    monkeypatch.setattr(device_state, "EVENT_SECONDS", 0.05)
    return found


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_state_is_read_in_a_stream_of_its_own(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = record_writer.write
    inside: list[bool] = []

    def watched(*given: Any) -> bool:
        inside.append(device.in_stream)
        return write(*given)

    monkeypatch.setattr(survivors, "write", watched)
    run = opened(global_batch=5, epochs=1, task=FAILS)
    run.records = tmp_path
    with pytest.raises(RuntimeError, match="the probe must fail"):
        loop(run, Survivor(run))
    assert names(tmp_path) == ["step-00000006.attempt-0"]
    assert inside == [True]


def test_rank_whose_stream_waits_in_a_reduction_keeps_the_state_before_it(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each update has three events: its begin, the end of its reductions, and its end."""
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    run = opened(global_batch=5, epochs=1, task={"samples": 50})
    run.records = tmp_path
    survivor = Survivor(run)
    device.stops_at = 3 * 4 + 1
    training = threading.Thread(target=loop, args=(run, survivor), daemon=True)
    training.start()
    assert device.stopped.wait(30)
    survivor._leave(tmp_path)
    assert codes == [85]
    assert names(tmp_path) == ["step-00000004.attempt-0"]
    device.stops_at = None
    device.released.set()
    training.join(30)
    assert not training.is_alive()


@pytest.mark.parametrize("reason", ["the end of the update", "the device"])
def test_state_is_not_read_before_its_update_has_ended(
    device: Device, tmp_path: Path, reason: str
) -> None:
    run = opened(global_batch=5, epochs=1, task=FAILS, checkpoint={"memory_every_steps": None})
    run.records = tmp_path
    survivor = Survivor(run)
    begin_update = survivor.begin_update

    def begin() -> None:
        begin_update()
        if run.position.step == 6:
            device.failed = reason == "the device"
            device.stops_at = device.recorded - 1

    survivor.begin_update = begin  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="the probe must fail"):
        loop(run, survivor)
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("memory", "device", "handling", "kept"),
    [
        (None, CPU, None, True),
        (False, CPU, None, False),
        (None, GPU, None, False),
        (True, GPU, None, True),
        (True, GPU, "3", True),
        (True, GPU, "1", False),
        (True, CPU, "1", True),
    ],
)
def test_state_is_kept_on_a_gpu_only_on_request(
    memory: bool | None, device: torch.device, handling: str | None, *, kept: bool
) -> None:
    environ = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": handling} if handling else {}
    assert keeps_state(memory, device, environ) == kept
    sentence = why_not_kept(memory, device, environ)
    assert (sentence is None) == (kept or not memory)
    if sentence:
        assert sentence.startswith("the state is not kept in memory, because with TORCH_NCCL_")
