"""Write a rank's reports as heartbeats, and on global rank 0 as the run's history.

A report must take about a microsecond and never fail. So each call only stores values, and at most
twice per second a heartbeat is written. Modules that import pydantic are loaded at the first
report.
"""

import atexit
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddp_trainer.report.checks import LARGEST, warn
from ddp_trainer.report.own_rank import own_rank
from ddp_wire.variables import Env

if TYPE_CHECKING:
    from ddp_trainer.observe.history_writer import HistoryWriter
    from ddp_wire.messages import LocalHeartbeat, Progress

_WRITE_SECONDS = 0.5
"""Minimum seconds between two written reports."""
_TOP_LEVEL = ("loss", "samples_per_second", "learning_rate", "grad_norm")
"""Metrics that have their own field in the job's status."""


class ScriptReporter:
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
        """Store the newest step and values. Write them if the last write is long enough ago."""
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
        """Report a complete checkpoint, or the checkpoint that the script resumes from."""
        from ddp_wire.messages import CheckpointInfo  # noqa: PLC0415 - slow to import

        self._heartbeat.checkpoint = CheckpointInfo(step=step, path=path[:4096], at=time.time())
        if self._first is None:
            self._heartbeat.resumed_from = self._step = step
        else:
            self._record("checkpoint", step=step, path=path[:4096], seconds=0.0)
        self._write(time.monotonic())

    def _begin(self, step: int) -> None:
        """Report the start of the training, at the first step of this attempt."""
        from ddp_wire.messages import RankPhase  # noqa: PLC0415 - slow to import

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
        from ddp_wire.messages import Progress  # noqa: PLC0415 - slow to import

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
                warn(f"the metric {name} must be a number, not {type(value).__name__}")
            return None

    def _flush(self) -> None:
        """Write the newest values before the process ends."""
        if os.getpid() != self._pid:
            return
        if self._pending:
            self._write(time.monotonic())
        if self._history is not None:
            self._history.close()


def open_reporter() -> ScriptReporter | None:
    """Return a writer for this rank, or None outside of a job."""
    directory = os.environ.get(Env.BEATS_DIR)
    if not directory:
        return None
    from ddp_wire.messages import LocalHeartbeat, RankPhase  # noqa: PLC0415 - slow to import

    found = own_rank("nothing is reported")
    if found is None:
        return None
    ranks, attempt = found
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
        return ScriptReporter(Path(directory), heartbeat)
    from ddp_trainer.observe.history_writer import HistoryWriter  # noqa: PLC0415

    return ScriptReporter(Path(directory), heartbeat, HistoryWriter(Path(run)), ranks.world_size)


def _rounded(number: float | None) -> int | None:
    known = number is not None and abs(number) <= LARGEST
    return int(number) if known and number is not None else None
