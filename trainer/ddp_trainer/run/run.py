"""The state of an open run: its parts, its position and its clock.

The work between updates is in modules of its own, as functions of a `Run`: `run.exchange`,
`run.saving`, `run.evaluating` and `run.settling`. They import this module, and it imports none of
them.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddp_trainer.checkpoint.background import Background
from ddp_trainer.checkpoint.manager import CheckpointManager
from ddp_trainer.config import RunConfig
from ddp_trainer.data.loader import Sampler
from ddp_trainer.data.sampler import MicroBatch
from ddp_trainer.learner import Learner
from ddp_trainer.numerics.guard import NonFiniteTracker
from ddp_trainer.observe.reporter import Reporter
from ddp_trainer.observe.starvation import DataWaitMonitor
from ddp_trainer.observe.stragglers import StragglerMonitor
from ddp_trainer.observe.work import WorkMeter
from ddp_trainer.ranks import process_group
from ddp_trainer.ranks.agreement import Agreement
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.run.data import Position
from ddp_trainer.run.source import Fingerprints
from ddp_trainer.stop import StopFlag
from ddp_trainer.task import Task, Update
from ddp_wire.activity import Activity


@dataclass(slots=True)
class ReplicaState:
    """Progress of the comparison of all ranks (`run.replicas`)."""

    every_steps: int
    """Maximum number of updates between two comparisons; 0 turns them off."""
    equal_step: int
    """Number of updates at the newest comparison without a difference, or at the start."""

    @property
    def enabled(self) -> bool:
        """Whether the ranks compare their state."""
        return self.every_steps > 0

    def due(self, step: int) -> bool:
        """Return whether a comparison is due after this update; equal on all ranks."""
        return self.enabled and step - self.equal_step >= self.every_steps


@dataclass(slots=True)
class Run:
    """One attempt of a run."""

    config: RunConfig
    task_path: str
    ranks: Ranks
    fingerprints: Fingerprints
    attempt: int
    job: str
    """Uid of the job, or "" for a run by hand."""
    task: Task
    learner: Learner
    sampler: Sampler
    train_loader: Iterable[MicroBatch]
    eval_loader: Iterable[MicroBatch] | None
    checkpoints: CheckpointManager
    agreement: Agreement
    stop: StopFlag
    report: Reporter
    work: WorkMeter
    position: Position
    total_steps: int
    reported_step: int
    """Step of the newest progress report."""
    nonfinite: NonFiniteTracker
    replicas: ReplicaState
    data_wait_monitor: DataWaitMonitor
    stragglers: StragglerMonitor = field(default_factory=StragglerMonitor)
    background: Background = field(default_factory=Background)
    """Writes of checkpoints beside the training."""
    records: Path | None = None
    """Folder of this node's records in memory (`checkpoint.records`). None without one."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Metrics of the newest evaluation, by name."""
    clock: float | None = field(default_factory=time.monotonic)
    """Value of `time.monotonic()` at which `position.seconds` was correct; None when stopped."""
    before_first_update: bool = True
    """Whether this attempt has not yet completed an update."""
    evaluated_step: int = -1
    """Step of the newest evaluation of this attempt."""
    synchronized_step: int = -1
    """Step after which all ranks last got the same model."""

    @property
    def epoch(self) -> int | None:
        """Epoch of the newest update, from 1; 0 before the first; None for data without length."""
        return self.sampler.epoch_of(self.position.samples)

    @property
    def complete(self) -> bool:
        """Whether the position has reached the last update or the time limit."""
        if self.position.step >= self.total_steps:
            return True
        return self.time_limit_reached(self.position.seconds)

    def seconds(self) -> float:
        """Return the seconds of training until now, over all attempts."""
        passed = 0.0 if self.clock is None else time.monotonic() - self.clock
        return self.position.seconds + passed

    def advance(self, samples: int) -> None:
        """Record one update.

        Args:
            samples: Number of samples in the update, over all ranks.
        """
        old = self.position
        consumed = self.sampler.after(old.samples, samples)
        self.position = Position(old.step + 1, consumed, old.seconds)
        self.report.rates.add(samples)
        self.report.times.update()
        self.work.update()
        self.report.heartbeats.step(self.position.step)
        if self.before_first_update:
            self.before_first_update = False
            process_group.set_timeout(self.config.parallel.timeout_seconds)

    def call_hook(self, hook: Callable[[Update], None]) -> None:
        """Call the task's hook after the newest update."""
        learner = self.learner
        learner.trace.enter(Activity.HOOK)
        with learner.strategy.whole_weights(learner.model) as find_model:
            hook(
                Update(
                    step=self.position.step,
                    total_steps=self.total_steps,
                    epoch=self.epoch,
                    optimizer=learner.optimizer,
                    metrics=self.metrics,
                    find_model=find_model,
                )
            )

    def stop_clock(self) -> None:
        """Stop the clock of the training time after the last update of this attempt."""
        self.position = Position(self.position.step, self.position.samples, self.seconds())
        self.clock = None

    def totals(self) -> dict[str, Any]:
        """Return the progress of the run as fields of the run's last event."""
        newest = self.checkpoints.newest if self.ranks.is_first else None
        step, samples, seconds = self.position.step, self.position.samples, self.position.seconds
        return {
            "steps": step,
            "total_steps": self.total_steps,
            "epoch": self.epoch,
            "samples": samples,
            "seconds": seconds,
            "samples_per_second": samples / seconds if seconds else None,
            "checkpoint": newest.path if newest else None,
        }

    def seconds_left(self, seconds: float) -> float | None:
        """Return the remaining training time after the given seconds; None without a limit."""
        limit = self.config.max_seconds
        return None if limit is None else limit - seconds

    def time_limit_reached(self, seconds: float) -> bool:
        """Return whether the given seconds of training have reached the time limit."""
        left = self.seconds_left(seconds)
        return left is not None and left <= 0.0
