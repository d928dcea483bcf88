"""XID errors of GPUs: the events of a stub of NVML are counted, and a failed attempt names them."""

import queue
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from ddp_agent.status.gpus import GpuReader
from ddp_agent.status.xids import XidCounter, new_xids
from tests.agent.harness import AgentHarness, phase, stub_torchrun
from tests.agent.support import adopting_orphans, wait_until


class StubNvml:
    """NVML of a machine with GPUs whose events a test sends. A handle is an index."""

    def __init__(self, patch: pytest.MonkeyPatch, *, unsupported: tuple[int, ...] = ()) -> None:
        self.events = queue.Queue[Any]()
        self.registered: list[int] = []
        self.waits = 0
        self._unsupported = unsupported
        patch.setattr(pynvml, "nvmlEventSetCreate", lambda: "set")
        patch.setattr(pynvml, "nvmlDeviceRegisterEvents", self._register)
        patch.setattr(pynvml, "nvmlEventSetWait_v2", self._wait)
        patch.setattr(pynvml, "nvmlDeviceGetIndex", lambda handle: handle)

    def send(self, gpu: int, xid: int) -> None:
        """Send an XID error."""
        kind = pynvml.nvmlEventTypeXidCriticalError
        self.events.put(SimpleNamespace(device=gpu, eventType=kind, eventData=xid))

    def _register(self, handle: int, kinds: int, events: str) -> None:
        assert (kinds, events) == (pynvml.nvmlEventTypeXidCriticalError, "set")
        if handle in self._unsupported:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        self.registered.append(handle)

    def _wait(self, events: str, _milliseconds: int) -> Any:
        assert events == "set"
        self.waits += 1
        try:
            found = self.events.get(timeout=0.01)
        except queue.Empty:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT) from None
        if isinstance(found, Exception):
            raise found
        return found


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> StubNvml:
    return StubNvml(monkeypatch)


@pytest.fixture
def counter(nvml: StubNvml) -> Iterator[XidCounter]:
    counter = XidCounter(lambda: [0, 1])
    counter.start()
    wait_until(lambda: nvml.waits > 0, "the thread waits for events")
    yield counter
    counter.close()


def test_xid_errors_are_counted_by_gpu_and_number(nvml: StubNvml, counter: XidCounter) -> None:
    before = counter.counts
    for gpu, xid in [(0, 79), (1, 31), (0, 79), (1, 999), (1, 100_000)]:
        nvml.send(gpu, xid)
    expected = {(0, "79"): 2, (1, "31"): 1, (1, "other"): 2}
    wait_until(lambda: counter.counts == expected, "all errors are counted")
    assert before == {}, "what a reader got does not change"
    assert nvml.registered == [0, 1]


def test_nvml_events_of_other_kinds_are_not_counted(nvml: StubNvml, counter: XidCounter) -> None:
    kind = pynvml.nvmlEventTypeSingleBitEccError
    nvml.events.put(SimpleNamespace(device=0, eventType=kind, eventData=0))
    nvml.send(0, 79)
    wait_until(lambda: bool(counter.counts), "the error is counted")
    assert counter.counts == {(0, "79"): 1}


def test_xid_counter_continues_after_an_error_of_nvml(
    nvml: StubNvml, counter: XidCounter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddp_agent.status.xids._PAUSE_SECONDS", 0.01)
    nvml.events.put(pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST))
    nvml.send(1, 79)
    wait_until(lambda: counter.counts == {(1, "79"): 1}, "the error is counted")


def test_gpu_without_xid_support_does_not_hide_the_errors_of_other_gpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nvml = StubNvml(monkeypatch, unsupported=(0,))
    counter = XidCounter(lambda: [0, 1])
    counter.start()
    nvml.send(1, 48)
    wait_until(lambda: counter.counts == {(1, "48"): 1}, "the error is counted")
    counter.close()


@pytest.mark.parametrize("gpus", [[], [0, 1]])
def test_thread_ends_if_no_gpu_supports_xid_events(
    monkeypatch: pytest.MonkeyPatch, gpus: list[int]
) -> None:
    nvml = StubNvml(monkeypatch, unsupported=(0, 1))
    XidCounter(lambda: gpus)._run()
    assert nvml.waits == 0


def test_reading_the_xid_counts_does_not_block(nvml: StubNvml, counter: XidCounter) -> None:
    nvml.send(0, 79)
    wait_until(lambda: bool(counter.counts), "the error is counted")
    reader = GpuReader(lambda: counter.counts)
    reader._handles = []
    start = time.perf_counter()
    for _ in range(1000):
        reader.read()
    assert time.perf_counter() - start < 1.0, "less than a millisecond each, on a busy machine too"


def test_only_xids_that_are_new_since_the_last_reading_are_named() -> None:
    before = {(0, "79"): 1, (1, "31"): 1}
    assert new_xids(before, before) == ""
    now = {(0, "79"): 1, (1, "31"): 2, (1, "119"): 1, (3, "other"): 1}
    assert new_xids(before, now) == (
        "GPU 1 of the pod reported XID 119, XID 31 and GPU 3 of the pod reported an unknown XID"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="adopts orphans as PID 1 does")
@pytest.mark.parametrize(
    ("failure", "message"),
    [
        ('message="RuntimeError: CUDA error"', "RuntimeError: CUDA error; {xid}"),
        ('signal="SIGABRT"', "{xid}"),
        ('message="x" * 1024', "x" * 990 + "; {xid}"),
    ],
)
def test_message_of_a_failed_attempt_names_the_xid_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: str, message: str
) -> None:
    """An error of an earlier attempt is not named again."""
    script = f"""
heartbeat("Training")
wait_for_file({str(tmp_path / "end")!r} + str(attempt))
fail(rank=0, {failure})
"""
    stub_torchrun(monkeypatch, script)
    node = AgentHarness(tmp_path)
    node.write_order("1")

    def fail(attempt: int, **xids: int) -> None:
        node.xids = {(2, name.strip("x")): count for name, count in xids.items()}
        node.touch(f"end{attempt}")

    node.when(phase("Training"), lambda: fail(1, x31=1))
    node.when(phase("Failed"), lambda: node.write_order("2"))
    node.when(phase("Training", 2), lambda: fail(2, x31=1, x79=1))
    node.when(phase("Failed", 2), lambda: node.stop("terminate"))
    with adopting_orphans():
        node.run()
    found = [s.failure.message for s in node.statuses if s.failure is not None]
    xids = [f"GPU 2 of the pod reported XID {xid}" for xid in (31, 79)]
    assert found == [message.format(xid=xid) for xid in xids]
