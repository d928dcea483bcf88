"""Report on a run: events for log collectors, and heartbeats for the agent."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Literal

from ddp_trainer.observe.events import EventLog
from ddp_trainer.observe.heartbeats import HeartbeatWriter
from ddp_trainer.observe.rates import CpuMeter, RateMeter
from ddp_trainer.observe.times import TimeMeter
from ddp_trainer.ranks.agreement import RankSeconds
from ddp_wire.messages import CheckpointInfo, Progress, Straggler

_MEASURED = (
    "grad_norm", "allreduce_seconds", "allreduce_overlap_seconds", "mirror_step",
    "mirror_behind_seconds", "checkpoint_unwritten_seconds",
)  # fmt: skip
"""Fields of the progress that the progress event contains only if they are measured."""
_NOT_IN_EVENT = {"metrics", "loss_parts", "learning_rate", "straggler", *_MEASURED}
"""Fields of the progress that the progress event does not contain under the same name."""

LISTED_RANKS = 32
"""Maximum number of ranks for which an event contains each rank's value."""


class Reporter:
    """Reporter of one run. Every rank has a reporter, but only global rank 0 reports progress."""

    def __init__(
        self,
        *,
        events: EventLog,
        heartbeats: HeartbeatWriter,
        is_first: bool,
        total_steps: int,
        global_batch: int,
        peak_rate: float | None = None,
    ) -> None:
        """Prepare the reporter, without reporting anything.

        Args:
            events: Log of events.
            heartbeats: Writer of this rank's heartbeats.
            is_first: Whether this is global rank 0.
            total_steps: Updates of the whole run.
            global_batch: Samples per update, over all ranks.
            peak_rate: Peak rate of all devices in samples per second, if known.
        """
        self.heartbeats = heartbeats
        self.rates = RateMeter()
        self.times = TimeMeter()
        heartbeats.measure(self.times.read, self.times.since_first_update if is_first else None)
        self._cpu = CpuMeter()
        self._events = events
        self._is_first = is_first
        self._total_steps = total_steps
        self._global_batch = global_batch
        self._peak_rate = peak_rate
        self._progress = Progress(total_steps=total_steps)
        self._warned: set[str] = set()
        self.straggler: Straggler | None = None
        """The rank that is slow now, for the next report."""
        self.unwritten_seconds: float | None = None
        """Age of the checkpoint that is being written in the background, if one ever was."""

    def opened(
        self,
        *,
        newest: CheckpointInfo | None,
        resumed_step: int | None,
        record: str | None = None,
        skipped: list[str],
        **facts: Any,
    ) -> None:
        """Report the start of an attempt, skipped checkpoints, and the step to resume from.

        Args:
            newest: The newest checkpoint, if any.
            resumed_step: Number of completed updates from which the attempt continues. None if it
                starts at the beginning.
            record: Origin of the state in memory from which the attempt continues. None if it
                continues from the newest checkpoint.
            skipped: One sentence per skipped checkpoint.
            facts: Fields of the start event.
        """
        self._events.emit("start", **facts, total_steps=self._total_steps)
        for sentence in skipped:
            self.warn(sentence)
        if newest is not None and self._is_first:
            self.heartbeats.checkpoint(newest)
        if resumed_step is None:
            return
        self.heartbeats.resumed(resumed_step)
        message = f"resumed at step {resumed_step} of {self._total_steps}"
        path = newest.path if newest is not None and record is None else None
        if record is not None:
            message += f" {record}"
        self._events.emit("resume", step=resumed_step, path=path, message=message)

    @contextmanager
    def apart(self, name: Literal["checkpoint", "evaluation"]) -> Iterator[None]:
        """Measure the time of the context separately from updates and throughput."""
        with self.rates.pause(), self.times.apart(name):
            yield

    def already_complete(self, step: int) -> None:
        """Report that the run was complete before this attempt started."""
        message = f"resumed at step {step} of {self._total_steps}: nothing left to train"
        self._events.emit("complete", step=step, message=message)

    def trained(
        self,
        *,
        step: int,
        epoch: int | None,
        loss: float,
        loss_parts: Mapping[str, float] | None = None,
        lr: float,
        grad_norm: float | None,
        allreduce: tuple[float, float] | None = None,
        seconds_left: float | None = None,
        phase_seconds: dict[str, float] | None = None,
        rank_seconds: Sequence[RankSeconds] = (),
        mirror: tuple[int | None, float] | None = None,
    ) -> None:
        """Report the progress of training since the last report.

        The event also contains `data_wait_seconds`, the time without a batch to train on,
        `cpu_percent` of one CPU, and `throttled_seconds`, the time for which the container was
        throttled. `step_seconds` and, if measured, `own_seconds` have one value per rank, see
        `RankSeconds`; above `LISTED_RANKS` ranks only their spread and the slowest rank.

        Args:
            step: Newest update.
            epoch: Epoch of the newest update.
            loss: Mean training loss since the last report.
            loss_parts: Named parts of the loss, if the task has any.
            lr: Learning rate of the newest update.
            grad_norm: Gradient norm of the newest update, if measured.
            allreduce: Seconds of the gradients' all-reduce, and how many of them overlapped the
                backward pass, if measured.
            seconds_left: Seconds until the time limit of the run, if it has one.
            phase_seconds: Seconds of each phase of the newest measured update.
            rank_seconds: Durations of each rank.
            mirror: Updates in the newest copy of the mirror, and by how many seconds it is behind.
        """
        rate = self.rates.read()
        self._progress = Progress(
            step=step,
            total_steps=self._total_steps,
            epoch=epoch,
            loss=loss,
            loss_parts=dict(loss_parts) if loss_parts else None,
            samples_per_second=rate,
            eta_seconds=self._eta(step, rate, seconds_left),
            metrics=self._progress.metrics,
            learning_rate=lr,
            grad_norm=grad_norm,
            allreduce_seconds=allreduce[0] if allreduce else None,
            allreduce_overlap_seconds=allreduce[1] if allreduce else None,
            straggler=self.straggler,
            checkpoint_unwritten_seconds=self.unwritten_seconds,
            mirror_step=mirror[0] if mirror else None,
            mirror_behind_seconds=mirror[1] if mirror else None,
        )
        self.times.phase_seconds = phase_seconds or {}
        self._send_progress()
        self._emit_progress(lr, rate, phase_seconds, loss_parts, rank_seconds)

    def _emit_progress(
        self,
        lr: float,
        rate: float | None,
        phase_seconds: Mapping[str, float] | None,
        loss_parts: Mapping[str, float] | None,
        rank_seconds: Sequence[RankSeconds],
    ) -> None:
        """Emit the progress, with the measurements that only the event contains."""
        fields = self._progress.model_dump(exclude=_NOT_IN_EVENT)
        fields |= {"lr": lr, "data_wait_seconds": self.times.data_wait.read(), **self._cpu.read()}
        fields |= self._progress.model_dump(include=set(_MEASURED), exclude_none=True)
        fields |= _not_empty(phase_seconds=phase_seconds, loss_parts=loss_parts)
        fields |= _rank_fields(rank_seconds)
        if self._peak_rate is not None:
            fields["mfu"] = rate / self._peak_rate if rate else None
        self._events.emit("progress", **fields)

    def evaluated(
        self, *, step: int, epoch: int | None, metrics: dict[str, float], seconds: float
    ) -> None:
        """Report the result of an evaluation.

        The event also contains the newest mean training loss, and the difference between the two
        losses.
        """
        loss, train_loss = metrics.get("loss"), self._progress.loss
        gap = {}
        if loss is not None and train_loss is not None:
            gap = {"train_loss": train_loss, "loss_gap": loss - train_loss}
        self._progress = self._progress.model_copy(
            update={"step": step, "epoch": epoch, "metrics": metrics}
        )
        self._send_progress()
        fields = {"step": step, "epoch": epoch, "metrics": metrics, **gap, "seconds": seconds}
        self._events.emit("eval", **fields)

    def saved(
        self, checkpoint: CheckpointInfo, seconds: float, background_seconds: float | None = None
    ) -> None:
        """Report a committed checkpoint. Only rank 0 calls this method.

        Args:
            checkpoint: The checkpoint.
            seconds: Time for which the save stopped training.
            background_seconds: Time of the write in the background, if there was one.
        """
        self.heartbeats.checkpoint(checkpoint)
        fields = checkpoint.model_dump(include={"step", "path", "interval_seconds"})
        if background_seconds is not None:
            fields["background_seconds"] = background_seconds
        self._events.emit("checkpoint", **fields, seconds=seconds)

    def traced(self, path: Path | None) -> None:
        """Report a profile, if one was written. Only rank 0 calls this method."""
        if path is not None:
            self._events.emit("profile", path=str(path))

    def warn(self, message: str) -> None:
        """Report a problem that the user should look at. The run continues."""
        self._events.emit("warning", message=message)

    def warn_once(self, message: str) -> None:
        """Report a problem, unless this attempt has reported it before."""
        if message not in self._warned:
            self._warned.add(message)
            self.warn(message)

    def note(self, message: str) -> None:
        """Report an expected automatic change of a setting or behaviour."""
        self._events.emit("note", message=message)

    def ended(self, event: str, **facts: Any) -> None:
        """Emit the last event of the attempt: `stop` or `summary`."""
        self._events.emit(event, **facts)
        self._events.close()

    def _eta(self, step: int, rate: float | None, seconds_left: float | None) -> int | None:
        """Return the seconds until the last update or the time limit, whichever is first."""
        by_steps = (self._total_steps - step) * self._global_batch / rate if rate else None
        ends = [seconds for seconds in (by_steps, seconds_left) if seconds is not None]
        return round(max(0.0, min(ends))) if ends else None

    def _send_progress(self) -> None:
        if self._is_first:
            self.heartbeats.progress(self._progress)


def _rank_fields(rank_seconds: Sequence[RankSeconds]) -> dict[str, Any]:
    """Return the fields of a progress event with the ranks' durations, if measured."""
    fields = {}
    if rank_seconds:
        fields["step_seconds"] = _by_rank([rank.step for rank in rank_seconds])
    if rank_seconds and all(rank.own for rank in rank_seconds):
        fields["own_seconds"] = _by_rank([rank.own for rank in rank_seconds])
    return fields


def _not_empty(**fields: Mapping[str, float] | None) -> dict[str, dict[str, float]]:
    return {name: dict(value) for name, value in fields.items() if value}


def _by_rank(seconds: list[float]) -> list[float] | dict[str, float]:
    """Return the seconds of each rank, or only their spread if there are many ranks."""
    if len(seconds) <= LISTED_RANKS:
        return seconds
    slowest = max(range(len(seconds)), key=seconds.__getitem__)
    spread = {"min": min(seconds), "median": median(seconds), "max": seconds[slowest]}
    return {**spread, "slowest": slowest}
