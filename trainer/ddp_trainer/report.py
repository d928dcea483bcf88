"""Reports of any training script to its job: progress, newest checkpoint, and requests to stop.

    from ddp_trainer import report

    report.progress(step, total=1000, loss=loss)
    report.checkpoint("/checkpoints/run/step-100", step)
    if report.should_stop():
        ...  # Save, then exit.

A script that is the `command` of a DDPJob calls these functions on any of its ranks. The operator
reads the reports of global rank 0. In a process outside of a job they do nothing. The import loads
neither torch nor pydantic, and no report raises an error of the disk.
"""

import atexit
import functools
import json
import operator
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from ddp_wire.exit_codes import ExitCode
from ddp_wire.variables import Env

if TYPE_CHECKING:
    from ddp_trainer.observe.history_writer import HistoryWriter
    from ddp_wire.contract import LocalHeartbeat, Progress

__all__ = ["STOPPED", "checkpoint", "progress", "should_stop"]

STOPPED: int = ExitCode.PREEMPTED
"""Exit code of a script that stopped on request, after saving. The restart is free."""

_WRITE_SECONDS = 0.5
"""Shortest time between two written reports, in seconds."""
_AGREE_SECONDS = 5.0
"""Approximate time between two exchanges of stop requests, in seconds."""
_LARGEST = 2**53
_TOP_LEVEL = ("loss", "samples_per_second", "learning_rate", "grad_norm")
"""Metrics for which the job's status has a field of its own."""


def progress(step: int, total: int | None = None, **metrics: Any) -> None:
    """Report how far the training is. A call costs about a microsecond.

    Call it once before the first update, with the step that the script starts or resumes from, and
    then after every update or every few. The job shows the newest values, at most two per second.

    Args:
        step: Updates done since the start of the run, over all attempts.
        total: Updates of the whole run, if known. A later call may leave it out.
        metrics: Newest values by name: numbers, or tensors with one element, which are read only
            when the report is written. `loss`, `samples_per_second`, `learning_rate`, `grad_norm`
            and `epoch` have their own fields. Values of earlier calls stay.

    Raises:
        TypeError: If `step` or `total` is no integer.
        ValueError: If `step` or `total` is negative or above 2**53.
    """
    step = _whole("step", step)
    total = None if total is None else _whole("total", total)
    reporter = _reporter()
    if reporter is not None:
        reporter.progress(step, total, metrics)


def checkpoint(path: str | os.PathLike[str], step: int) -> None:
    """Report a complete checkpoint, or the one that the script resumes from.

    Report the latter before the first `progress`, so that the job shows the resumed step.

    Args:
        path: Path of the checkpoint.
        step: Updates done when it was saved.

    Raises:
        TypeError: If `step` is no integer.
        ValueError: If `step` is negative or above 2**53.
    """
    step = _whole("step", step)
    reporter = _reporter()
    if reporter is not None:
        reporter.checkpoint(os.fspath(path), step)


def should_stop() -> bool:
    """Return whether the script should save and exit, with `STOPPED` or with 0.

    A stop is requested by SIGTERM, for example when the job is suspended or its node is drained.
    From the first call on SIGTERM no longer ends the process by itself.

    Every rank must call it equally often, for example after each update, because the ranks of
    torch's process group decide together: all of them get the same answer at the same call. For
    that they exchange their requests about every five seconds. Other calls cost a microsecond.
    """
    reporter = _reporter()
    return reporter is not None and _stop().requested()


class _Reporter:
    """Writer of this rank's heartbeats, and of the run's history on global rank 0."""

    def __init__(
        self,
        directory: Path,
        heartbeat: "LocalHeartbeat",
        history: "HistoryWriter | None" = None,
        world_size: int = 1,
    ) -> None:
        self._directory, self._heartbeat = directory, heartbeat
        self._history, self._world_size = history, world_size
        self._recorded: int | None = None
        self._pid = os.getpid()
        self._next_write = 0.0
        self._pending = False
        self._first: tuple[int, float] | None = None
        self._step = 0
        self._total: int | None = None
        self._metrics: dict[str, Any] = {}
        self._refused: set[str] = set()
        atexit.register(self._flush)

    def progress(self, step: int, total: int | None, metrics: dict[str, Any]) -> None:
        now = time.monotonic()
        for name, value in metrics.items():
            # A loss with its graph would keep the memory of a whole forward pass.
            self._metrics[name] = value.detach() if hasattr(value, "detach") else value
        self._step = step
        self._total = total or self._total
        if self._first is None:
            self._first = (step, now)
            self._begin(step)
        elif self._heartbeat.first_step_at is None:
            self._heartbeat.first_step_at = time.time()
            self._next_write = 0.0
        self._pending = True
        if now >= self._next_write:
            self._write(now)

    def checkpoint(self, path: str, step: int) -> None:
        from ddp_wire.contract import CheckpointInfo  # noqa: PLC0415 - slow to import

        self._heartbeat.checkpoint = CheckpointInfo(step=step, path=path[:4096], at=time.time())
        if self._first is None:
            self._heartbeat.resumed_from = self._step = step
        else:
            self._record("checkpoint", step=step, path=path[:4096], seconds=0.0)
        self._write(time.monotonic())

    def _begin(self, step: int) -> None:
        """Report the start of the training, at the first step of this attempt."""
        from ddp_wire.contract import RankPhase  # noqa: PLC0415 - slow to import

        self._heartbeat.phase = RankPhase.TRAINING
        self._heartbeat.joined_at = time.time()
        if self._heartbeat.resumed_from is None and self._heartbeat.attempt > 1:
            self._heartbeat.resumed_from = step
        self._record("start", world_size=self._world_size)
        if self._heartbeat.resumed_from is not None:
            self._record("resume", step=self._heartbeat.resumed_from)

    def _write(self, now: float) -> None:
        from ddp_trainer.observe.heartbeats import write_heartbeat  # noqa: PLC0415 - slow

        self._next_write = now + _WRITE_SECONDS
        self._pending = False
        self._heartbeat.at = time.time()
        self._heartbeat.step = self._step
        if self._heartbeat.rank == 0 and self._first is not None:
            self._heartbeat.progress = newest = self._newest(now, *self._first)
            self._record_progress(newest)
        write_heartbeat(self._directory, self._heartbeat)

    def _record_progress(self, newest: "Progress") -> None:
        """Add a new step to the history, for the charts of `ddpjob report`."""
        if newest.step == self._recorded:
            return
        self._recorded = newest.step
        self._record(
            "progress",
            step=newest.step,
            total_steps=newest.total_steps,
            loss=newest.loss,
            samples_per_second=newest.samples_per_second,
            lr=newest.learning_rate,
        )
        if newest.metrics:
            self._record("eval", step=newest.step, metrics=newest.metrics, seconds=0.0)

    def _record(self, event: str, **fields: Any) -> None:
        if self._history is None:
            return
        now = round(time.time(), 3)
        head = {"event": event, "time": now, "rank": 0, "attempt": self._heartbeat.attempt}
        self._history.write(event, now, json.dumps(head | fields) + "\n")

    def _newest(self, now: float, first_step: int, first_time: float) -> "Progress":
        from ddp_wire.contract import Progress  # noqa: PLC0415 - slow to import

        metrics = {name: self._number(name, value) for name, value in self._metrics.items()}
        known = {name: value for name, value in metrics.items() if value is not None}
        epoch = known.pop("epoch", None)
        fields: dict[str, Any] = {name: known.pop(name) for name in _TOP_LEVEL if name in known}
        left = None if self._total is None else max(0, self._total - self._step)
        done = self._step - first_step
        seconds = left * (now - first_time) / done if left is not None and done > 0 else None
        return Progress(
            step=self._step,
            total_steps=self._total,
            epoch=_rounded(epoch),
            eta_seconds=_rounded(seconds),
            metrics=known,
            **fields,
        )

    def _number(self, name: str, value: Any) -> float | None:
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            if name not in self._refused:
                self._refused.add(name)
                _warn(f"the metric {name} must be a number, not {type(value).__name__}")
            return None

    def _flush(self) -> None:
        """Write the newest values before the process ends."""
        if os.getpid() != self._pid:
            return
        if self._pending:
            self._write(time.monotonic())
        if self._history is not None:
            self._history.close()


class _Stop:
    """Stop request of this process, and the decision of all ranks."""

    def __init__(self) -> None:
        self._own = self._decided = False
        self._calls = self._last_call = 0
        self._next_call = 1
        self._last_time = time.monotonic()
        if threading.current_thread() is not threading.main_thread():
            _warn("should_stop must be called first in the main thread, so it never returns True")
            return
        self._previous = signal.signal(signal.SIGTERM, self._handle)

    def requested(self) -> bool:
        distributed: Any = sys.modules.get("torch.distributed")
        if distributed is None or not distributed.is_initialized():
            return self._own
        self._calls += 1
        if not self._decided and self._calls >= self._next_call:
            self._exchange(distributed)
        return self._decided

    def _exchange(self, distributed: Any) -> None:
        """Decide together with the other ranks, and when to do so next."""
        torch: Any = sys.modules["torch"]
        device = "cpu" if "cpu:" in str(distributed.get_backend_config()) else "cuda"
        elapsed = time.monotonic() - self._last_time
        sums = torch.tensor([float(self._own), elapsed], dtype=torch.float64, device=device)
        distributed.all_reduce(sums)
        stopping, seconds = sums.tolist()
        self._decided = stopping > 0
        calls = self._calls - self._last_call
        seconds = max(seconds / distributed.get_world_size(), 1e-6)
        # At most 10 times the measured calls, because the first updates are not typical.
        ahead = min(int(_AGREE_SECONDS * calls / seconds), 10 * calls)
        self._next_call = self._calls + max(1, ahead)
        self._last_call, self._last_time = self._calls, time.monotonic()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._own = True
        if callable(self._previous):
            self._previous(number, frame)


_stop = functools.cache(_Stop)


@functools.cache
def _reporter() -> _Reporter | None:
    """Return the writer of this rank, or None outside of a job."""
    directory = os.environ.get(Env.BEATS_DIR)
    if not directory:
        return None
    from ddp_trainer.errors import InputError  # noqa: PLC0415 - slow to import
    from ddp_trainer.ranks.environment import Ranks, integer  # noqa: PLC0415
    from ddp_wire.contract import LocalHeartbeat, RankPhase  # noqa: PLC0415

    try:
        ranks = Ranks.from_environment(os.environ)
        attempt = integer(os.environ, Env.ATTEMPT) or 0
    except InputError as error:
        _warn(f"nothing is reported: {error}")
        return None
    heartbeat = LocalHeartbeat(
        attempt=attempt,
        rank=ranks.rank,
        local_rank=ranks.local_rank,
        phase=RankPhase.TRAINING,
        at=0.0,
        pid=os.getpid(),
    )
    run = os.environ.get(Env.CHECKPOINT_DIR) if ranks.rank == 0 else None
    if not run:
        return _Reporter(Path(directory), heartbeat)
    from ddp_trainer.observe.history_writer import HistoryWriter  # noqa: PLC0415

    return _Reporter(Path(directory), heartbeat, HistoryWriter(Path(run)), ranks.world_size)


def _rounded(number: float | None) -> int | None:
    known = number is not None and abs(number) <= _LARGEST
    return int(number) if known and number is not None else None


def _whole(name: str, value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        sentence = f"report: {name} must be an integer, not {value!r}"
        raise TypeError(sentence) from None
    if not 0 <= number <= _LARGEST:
        raise ValueError(f"report: {name} must be from 0 to 2**53, not {number}")
    return number


def _warn(sentence: str) -> None:
    print(f"warning: report: {sentence}", file=sys.stderr, flush=True)
