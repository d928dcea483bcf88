"""A run that is open: what it holds, and what it does between updates."""

import platform
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from ddp_trainer.checkpoint.manager import CheckpointManager
from ddp_trainer.config import RunConfig
from ddp_trainer.data.evaluation import evaluate
from ddp_trainer.data.loader import Sampler
from ddp_trainer.data.sampler import Micro
from ddp_trainer.learner import Learner
from ddp_trainer.numerics.guard import NonFiniteError, Verdicts
from ddp_trainer.numerics.norm import average_norm_statistics
from ddp_trainer.observe.report import Reporter
from ddp_trainer.observe.starvation import DataWatch
from ddp_trainer.ranks import process_group
from ddp_trainer.ranks.agreement import Agreement, Verdict, Wishes
from ddp_trainer.ranks.collectives import on_first_rank, sum_over_ranks
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.run.garbage import Collector
from ddp_trainer.run.state import gather, learner_state, restore
from ddp_trainer.stop import StopFlag
from ddp_trainer.task import HasOptimizer, Task


@dataclass(frozen=True, slots=True)
class Position:
    """How far a run is, over all attempts."""

    step: int = 0
    """Updates done."""
    samples: int = 0
    """Samples consumed, over all ranks."""
    seconds: float = 0.0
    """Time of training, evaluations and checkpoints on the way included."""


@dataclass(slots=True)
class Run:
    """One attempt at a run."""

    config: RunConfig
    task_path: str
    ranks: Ranks
    attempt: int
    task: Task
    learner: Learner
    sampler: Sampler
    train_loader: Iterable[Micro]
    eval_loader: Iterable[Micro] | None
    checkpoints: CheckpointManager
    agreement: Agreement
    stop: StopFlag
    report: Reporter
    position: Position
    total_steps: int
    reported_step: int
    """Update of the newest report."""
    verdicts: Verdicts
    data_watch: DataWatch
    metrics: dict[str, float] = field(default_factory=dict)
    """Newest evaluation."""
    clock: float | None = field(default_factory=time.monotonic)
    """Monotonic time at which the position's seconds were right; nothing when no time passes."""
    beginning: bool = True
    """Whether this attempt has done no update yet."""
    evaluated_step: int = -1
    settled_step: int = -1
    """Update after which the ranks were made one model last."""

    @property
    def epoch(self) -> int | None:
        """Number of the epoch that the newest update belonged to, from 1; 0 before the first.

        Nothing where the data have no length.
        """
        return self.sampler.epoch_of(self.position.samples)

    @property
    def complete(self) -> bool:
        """Whether there is nothing left to train, by the position."""
        return self.position.step >= self.total_steps or self._used_up(self.position.seconds)

    def seconds(self) -> float:
        """Time of training until now, over all attempts."""
        passed = 0.0 if self.clock is None else time.monotonic() - self.clock
        return self.position.seconds + passed

    def advance(self, samples: int) -> None:
        """Notes one update.

        Args:
            samples: What it consumed, over all ranks.
        """
        old = self.position
        self.position = Position(old.step + 1, old.samples + samples, old.seconds)
        self.report.rates.add(samples)
        self.report.beats.step(self.position.step)
        if self.beginning:
            self.beginning = False
            process_group.set_timeout(self.config.parallel.timeout_seconds)

    def settle(self) -> None:
        """Fixes the time of training in the position, once the last update is done."""
        self.position = Position(self.position.step, self.position.samples, self.seconds())
        self.clock = None

    def meet(self) -> Verdict:
        """Agrees with the other ranks, and reports if that is due. Every rank must call it."""
        first = self.ranks.is_first
        wishes = Wishes(
            stop=self.stop.requested,
            finish=first and self._used_up(self.seconds()),
            save=first and self.checkpoints.time_is_up(),
            waiting=self.learner.compression.share() if self.learner.compression else 0.0,
            starving=self.data_watch.mine(),
        )
        step, learner = self.position.step, self.learner
        verdict = self.agreement.meet(step, learner.tally.read(), wishes)
        hunger = self.data_watch.judge(verdict.starving, verdict.seconds)
        if hunger:
            self.report.warned(hunger)
        due = step % self.config.log.every_steps == 0 or step == self.total_steps
        # An attempt that has just resumed on such a step has nothing to tell of yet.
        if due and (verdict.loss_count or verdict.nonfinite):
            self._react(verdict)
            learner.tally.clear()
            self.report.trained(
                step=step,
                epoch=self.epoch,
                loss=verdict.loss,
                lr=learner.optimizer.param_groups[0]["lr"],
                grad_norm=None if learner.grad_norm is None else learner.grad_norm.item(),
                seconds_left=self._seconds_left(self.seconds()),
                phase_seconds=learner.trace.seconds(),
            )
        learner.trace.look(self.report.warned)
        return verdict

    def save(self, *, required: bool = False) -> None:
        """Saves a checkpoint of this step, if it is not saved yet. Every rank must call it.

        Args:
            required: Whether the run fails when the volume refuses. A checkpoint on the way only
                warns: training goes on, and the next one is due in its time.

        Raises:
            OSError: On rank 0, if it is required and the volume refuses.
            NonFiniteError: If it is required and there is nothing left that is worth saving.
        """
        if not self.checkpoints.enabled:
            return
        if self._weights_lost(required=required):
            return
        self._settle_ranks()
        with self.report.rates.pause(), self.learner.trace.range("checkpoint"):
            begun = time.monotonic()
            taken = gather(self.learner)
            if taken is None:
                return
            taken.state = self._state()
            try:
                saved = self.checkpoints.save(taken)
            except OSError as error:
                if required:
                    raise
                self.report.warned(f"checkpoint not saved: {error}")
                return
            if saved:
                self.report.saved(saved, time.monotonic() - begun)

    def evaluate(self) -> None:
        """Evaluates this step, if it is not evaluated yet. Every rank must call it."""
        step = self.position.step
        if self.eval_loader is None or self.evaluated_step == step:
            return
        self._settle_ranks()
        begun = time.monotonic()
        averaged = self.learner.evaluated(averaged=self.config.ema.evaluate)
        with self.report.rates.pause(), averaged, self.learner.trace.range("evaluation"):
            self.metrics = evaluate(
                self.task,
                self.learner.model,
                self.eval_loader,
                device=self.learner.device,
                autocast=self.learner.autocast,
                alive=self.report.beats.alive,
            )
        self.evaluated_step = step
        self.report.evaluated(
            step=step, epoch=self.epoch, metrics=self.metrics, seconds=time.monotonic() - begun
        )

    def totals(self) -> dict[str, Any]:
        """How far the run is, as fields of its last event."""
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

    def _seconds_left(self, seconds: float) -> float | None:
        limit = self.config.max_seconds
        return None if limit is None else limit - seconds

    def _used_up(self, seconds: float) -> bool:
        left = self._seconds_left(seconds)
        return left is not None and left <= 0.0

    def _settle_ranks(self) -> None:
        """Makes all ranks hold one model, where they differ between updates."""
        if self.settled_step == self.position.step:
            return
        average_norm_statistics(self.learner.model, self.ranks.world_size)
        if self.learner.local_sgd:
            self.learner.local_sgd.average()
        self.settled_step = self.position.step
        Collector.paused()

    def _react(self, verdict: Verdict) -> None:
        """Answers what a report shows. The same on all ranks."""
        step = self.position.step
        warning = self.verdicts.judge(step, verdict.nonfinite, step - self.reported_step)
        self.reported_step = step
        if warning:
            self.report.warned(warning)
            if self.learner.guard.policy == "rollback":
                self._roll_back()
        if self.learner.compression:
            switched_on = self.learner.compression.consider(step, verdict.waiting)
            if switched_on:
                self.report.noted(switched_on)

    def _roll_back(self) -> None:
        """Takes weights and optimizer back to the newest checkpoint; data and schedule go on.

        The data since then are passed over with those that did the harm, as in Chowdhery et al.
        2022 (arXiv:2204.02311), section 5.1.
        """
        found = on_first_rank(lambda: self.checkpoints.newest is not None, self.learner.device)
        if not found:
            raise NonFiniteError("training: there is no checkpoint yet to roll back to")
        saved = self.checkpoints.receive(self.learner.device)
        restore(self.learner, saved, keep_groups=not isinstance(self.task, HasOptimizer))

    def _weights_lost(self, *, required: bool) -> bool:
        """Whether an update went through that was not finite: then nothing may be saved."""
        if self.learner.guard.protects:
            return False
        # With local SGD it may be another rank's.
        if not sum_over_ranks(self.learner.tally.read()[2].clone()).item():
            return False
        sentence = f"gradients were not finite before step {self.position.step}: nothing is saved"
        if required:
            raise NonFiniteError(f"training: {sentence}")
        self.report.warned(sentence)
        return True

    def _state(self) -> dict[str, Any]:
        return {
            "step": self.position.step,
            "samples": self.position.samples,
            "seconds": self.seconds(),
            "epoch": self.epoch,
            "data_size": self.sampler.size,
            "total_steps": self.total_steps,
            "world_size": self.ranks.world_size,
            "attempt": self.attempt,
            **learner_state(self.learner),
            "nonfinite": self.verdicts.state(),
            "task": self.task_path,
            "config": self.config.model_dump(mode="json"),
            "versions": {"python": platform.python_version(), "torch": str(torch.__version__)},
        }
