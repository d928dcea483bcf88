"""An open run: its parts, and its work between updates."""

import platform
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import torch

from ddp_trainer.checkpoint.manager import CheckpointManager
from ddp_trainer.checkpoint.snapshot import Snapshot
from ddp_trainer.checkpoint.volume import volume_error
from ddp_trainer.config import RunConfig
from ddp_trainer.data.evaluation import evaluate
from ddp_trainer.data.loader import Sampler
from ddp_trainer.data.sampler import MicroBatch
from ddp_trainer.errors import ReportedError
from ddp_trainer.learner import Learner
from ddp_trainer.numerics.batch_norm import average_norm_statistics
from ddp_trainer.numerics.guard import NonFiniteError, NonFiniteTracker
from ddp_trainer.observe import stragglers
from ddp_trainer.observe.reporter import Reporter
from ddp_trainer.observe.starvation import DataWaitMonitor
from ddp_trainer.observe.stragglers import StragglerMonitor
from ddp_trainer.observe.work import WorkMeter
from ddp_trainer.parallel.ddp_times import newest_times
from ddp_trainer.ranks import process_group
from ddp_trainer.ranks.agreement import NOT_MEASURED, Agreement, Decision, RankSeconds, Requests
from ddp_trainer.ranks.collectives import finish_updates, on_first_rank, sum_over_ranks
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.run.garbage import Collector
from ddp_trainer.run.source import Fingerprints
from ddp_trainer.run.state import gather, learner_state, restore
from ddp_trainer.stop import StopFlag
from ddp_trainer.task import Task, Update
from ddp_wire.activity import Activity


@dataclass(frozen=True, slots=True)
class Position:
    """Progress of a run, over all attempts."""

    step: int = 0
    """Updates done."""
    samples: int = 0
    """Samples consumed, over all ranks. It includes those that data.drop_last left out."""
    seconds: float = 0.0
    """Time of training in seconds, including evaluations and checkpoints."""


@dataclass(slots=True)
class Run:
    """One attempt of a run."""

    config: RunConfig
    task_path: str
    ranks: Ranks
    fingerprints: Fingerprints
    attempt: int
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
    data_wait_monitor: DataWaitMonitor
    stragglers: StragglerMonitor = field(default_factory=StragglerMonitor)
    metrics: dict[str, float] = field(default_factory=dict)
    """Metrics of the newest evaluation, by name."""
    clock: float | None = field(default_factory=time.monotonic)
    """Value of `time.monotonic()` for which `position.seconds` is right; None when stopped."""
    before_first_update: bool = True
    """Whether this attempt has done no update yet."""
    evaluated_step: int = -1
    """Step of the newest evaluation."""
    synchronized_step: int = -1
    """Step at which all ranks were last given the same model."""

    @property
    def epoch(self) -> int | None:
        """Epoch of the newest update, from 1; 0 before the first; None for data without length."""
        return self.sampler.epoch_of(self.position.samples)

    @property
    def complete(self) -> bool:
        """Whether the position has reached the last update or the time limit."""
        if self.position.step >= self.total_steps:
            return True
        return self._time_limit_reached(self.position.seconds)

    def seconds(self) -> float:
        """Return the time of training until now, in seconds over all attempts."""
        passed = 0.0 if self.clock is None else time.monotonic() - self.clock
        return self.position.seconds + passed

    def advance(self, samples: int) -> None:
        """Record one update.

        Args:
            samples: Samples that it consumed, over all ranks.
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
        """Call the task's hook with the newest update."""
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
        """Stop the time of training, after the last update of this attempt."""
        self.position = Position(self.position.step, self.position.samples, self.seconds())
        self.clock = None

    def exchange_requests(self) -> Decision:
        """Decide together with the other ranks, and report if due. Every rank must call it."""
        first, step, learner = self.ranks.is_first, self.position.step, self.learner
        learner.trace.enter(Activity.EXCHANGE)
        due = step % self.config.log.every_steps == 0 or step == self.total_steps
        phase_seconds = learner.trace.seconds()
        own = self._own_seconds(phase_seconds)
        requests = Requests(
            stop=self.stop.requested,
            finish=first and self._time_limit_reached(self.seconds()),
            save=first and self.checkpoints.interval_passed(),
            communication_wait=learner.compression.share() if learner.compression else 0.0,
            starvation=self.data_wait_monitor.own_starvation(),
            rank_seconds=replace(own, step=self.report.times.mean_update()) if due else own,
        )
        totals, parts = learner.totals.read(), learner.parts.read()
        decision = self.agreement.exchange(step, totals, requests, parts)
        starvation_warning = self.data_wait_monitor.assess(decision.starvation, decision.seconds)
        if starvation_warning:
            self.report.warn(starvation_warning)
        straggler = self.stragglers.assess(decision.rank_seconds)
        if straggler is not None:
            self.report.warn(stragglers.sentence(straggler))
        self.report.straggler = self.stragglers.found
        # Right after a resume there is no training loss to report yet.
        if due and (decision.loss_count or decision.nonfinite):
            self._handle_decision(decision)
            learner.totals.clear()
            self.report.trained(
                step=step,
                epoch=self.epoch,
                loss=decision.loss,
                loss_parts=learner.parts.means(
                    decision.parts, decision.loss_count, self.ranks.world_size
                ),
                lr=learner.optimizer.param_groups[0]["lr"],
                grad_norm=None if learner.grad_norm is None else learner.grad_norm.item(),
                allreduce=self._allreduce(),
                seconds_left=self._seconds_left(self.seconds()),
                phase_seconds=phase_seconds,
                rank_seconds=decision.rank_seconds,
            )
        learner.trace.poll_request(self.report.warn)
        return decision

    def save(self, *, required: bool = False) -> None:
        """Save a checkpoint of this step, unless it is saved already. Every rank must call it.

        The other ranks wait until rank 0 has written it, under a limit of its own: in the next
        update they would wait under that of a collective, which a large checkpoint exceeds.

        Args:
            required: Whether a failure ends the run. Otherwise it only causes a warning: training
                continues until the next checkpoint is due.

        Raises:
            ReportedError: On every rank, if the checkpoint is required and the volume fails.
            NonFiniteError: If the checkpoint is required and the weights are not finite.
        """
        if not self.checkpoints.enabled:
            return
        if self._weights_broken(required=required):
            return
        self._settle()
        self.learner.trace.enter(Activity.CHECKPOINT)
        with self.report.apart("checkpoint"):
            start = time.monotonic()
            taken = gather(self.learner, self.task)
            with self._volume_timeout():
                on_first_rank(partial(self._commit, taken, start, required), self.learner.device)

    def _commit(self, taken: Snapshot | None, start: float, required: bool) -> None:
        """Write a checkpoint. Rank 0 only.

        Args:
            taken: Whole snapshot without the state of the run.
            start: Value of `time.monotonic()` at the start of the save.
            required: As for `save`.
        """
        if taken is None:
            return
        taken.state = self._state()
        try:
            saved = self.checkpoints.save(taken)
        except OSError as error:
            sentence = (
                f"checkpoint of step {self.position.step} was not saved to"
                f" {self.config.checkpoint.directory}: {error}"
            )
            if required:
                raise volume_error(sentence, error, ReportedError) from error
            self.report.warn(f"{sentence}; training continues")
            return
        if saved:
            self.report.saved(saved, time.monotonic() - start)

    def _volume_timeout(self) -> AbstractContextManager[None]:
        """Return a context in which ranks wait longer, because rank 0 uses the volume."""
        own = self.config.parallel
        usual = own.first_timeout if self.before_first_update else own.timeout_seconds
        return process_group.timeout(self.config.checkpoint.timeout_seconds, usual)

    def evaluate(self) -> None:
        """Evaluate this step, unless it is evaluated already. Every rank must call it."""
        step = self.position.step
        if self.eval_loader is None or self.evaluated_step == step:
            return
        self._settle()
        start = time.monotonic()
        averaged = self.learner.evaluated(averaged=self.config.ema.evaluate)
        self.learner.trace.enter(Activity.EVALUATION)
        with self.report.apart("evaluation"), averaged:
            self.metrics = evaluate(
                self.task,
                self.learner.model,
                self.eval_loader,
                device=self.learner.device,
                autocast=self.learner.autocast,
                refresh_heartbeat=self.report.heartbeats.refresh,
            )
        self.evaluated_step = step
        self.report.evaluated(
            step=step, epoch=self.epoch, metrics=self.metrics, seconds=time.monotonic() - start
        )

    def _own_seconds(self, phase_seconds: Mapping[str, float]) -> RankSeconds:
        """Return this rank's own part of a typical update, by the clock of its device."""
        own = self.work.read()
        if self.learner.device.type != "cuda" or own is NOT_MEASURED:
            return own
        names = ("data", "forward")
        return RankSeconds(own.step, *(phase_seconds.get(name, 0.0) for name in names))

    def _allreduce(self) -> tuple[float, float] | None:
        """Return the seconds of the newest measured all-reduce, and those that overlap."""
        found = newest_times(self.learner.objective)
        return (found.reduction, found.overlap) if found else None

    def totals(self) -> dict[str, Any]:
        """Return the progress of the run as fields of its last event."""
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

    def _time_limit_reached(self, seconds: float) -> bool:
        left = self._seconds_left(seconds)
        return left is not None and left <= 0.0

    def _settle(self) -> None:
        """Finish the updates on the device, and give all ranks the same model.

        A GPU's host runs ahead of it. Without this wait, a rank whose update waits for one that
        hangs would seem to save or to evaluate, which may take much longer than an update.
        """
        if self.synchronized_step == self.position.step:
            return
        finish_updates(self.learner.device)
        average_norm_statistics(self.learner.model, self.ranks.world_size)
        late = self.learner.synchronize()
        if late:
            self.report.warn(
                f"the loss began to change {len(late)} buffers after the first update, first"
                f' "{late[0]}"; from now on parallel.buffers applies to them'
            )
        self.synchronized_step = self.position.step
        Collector.collect_all()

    def _handle_decision(self, decision: Decision) -> None:
        """React to the decision of a report, equally on all ranks."""
        step = self.position.step
        warning = self.nonfinite.assess(step, decision.nonfinite, step - self.reported_step)
        self.reported_step = step
        if warning:
            self.report.warn(warning)
            if self.learner.guard.policy == "rollback":
                self._roll_back()
        if self.learner.compression:
            switched_on = self.learner.compression.consider(step, decision.communication_wait)
            if switched_on:
                self.report.note(switched_on)

    def _roll_back(self) -> None:
        """Restore weights and optimizer from the newest checkpoint; data and schedule continue.

        So the run skips the data since that checkpoint, including the data that caused the
        failure, as in Chowdhery et al. 2022 (arXiv:2204.02311), section 5.1.
        """
        found = on_first_rank(lambda: self.checkpoints.newest is not None, self.learner.device)
        if not found:
            raise NonFiniteError(
                "training: gradients were not finite, and there is no checkpoint yet to roll back"
                " to"
            )
        # A read from a slow volume may take much longer than an exchange.
        self.learner.trace.enter(Activity.CHECKPOINT)
        with self._volume_timeout():
            saved = self.checkpoints.receive(self.learner.device)
            restore(self.learner, self.task, saved)

    def _weights_broken(self, *, required: bool) -> bool:
        """Check whether an update was made with non-finite gradients, and report it.

        Then the weights are not finite, and must not be saved.
        """
        if self.learner.guard.protects:
            return False
        # With local SGD the update may be another rank's.
        if not sum_over_ranks(self.learner.totals.read()[2].clone()).item():
            return False
        sentence = (
            f"checkpoint of step {self.position.step} was not saved, because an earlier update had"
            " gradients that were not finite"
        )
        if required:
            raise NonFiniteError(f"training: {sentence}")
        self.report.warn(sentence)
        return True

    def _state(self) -> dict[str, Any]:
        return {
            "step": self.position.step,
            "samples": self.position.samples,
            "seconds": self.seconds(),
            "epoch": self.epoch,
            "data_size": self.sampler.size,
            "order_version": self.sampler.order_version,
            "total_steps": self.total_steps,
            "world_size": self.ranks.world_size,
            "attempt": self.attempt,
            **learner_state(self.learner),
            "nonfinite": self.nonfinite.state(),
            "task": self.task_path,
            **asdict(self.fingerprints),
            "config": self.config.model_dump(mode="json"),
            "versions": {"python": platform.python_version(), "torch": str(torch.__version__)},
        }
