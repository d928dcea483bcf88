"""What a run tells: the same facts as lines for collectors and as beats for the agent."""

from pathlib import Path
from typing import Any

from ddp_trainer.observe.beats import BeatWriter
from ddp_trainer.observe.events import EventLog
from ddp_trainer.observe.rates import CpuMeter, RateMeter
from ddp_trainer.observe.wait_clock import WaitClock
from ddp_wire.contract import CheckpointInfo, Progress


class Reporter:
    """Tells of one run. Every rank has one; lines and progress come from global rank 0 only."""

    def __init__(
        self,
        *,
        events: EventLog,
        beats: BeatWriter,
        is_first: bool,
        total_steps: int,
        global_batch: int,
        peak_rate: float | None = None,
    ) -> None:
        """Nothing is told yet.

        Args:
            events: Where lines go.
            beats: Where beats go.
            is_first: Whether this is global rank 0.
            total_steps: Updates of the whole run.
            global_batch: Samples per update, over all ranks.
            peak_rate: Samples per second that the devices could do at most, where it is known.
        """
        self.beats = beats
        self.rates = RateMeter()
        self.data_wait = WaitClock()
        self._cpu = CpuMeter()
        self._events = events
        self._is_first = is_first
        self._total_steps = total_steps
        self._global_batch = global_batch
        self._peak_rate = peak_rate
        self._progress = Progress(total_steps=total_steps)

    def opened(
        self, *, resumed_from: CheckpointInfo | None, skipped: list[str], **facts: Any
    ) -> None:
        """Tells what begins, which checkpoints were passed over, and which one is resumed from.

        Args:
            resumed_from: The checkpoint, if there is one.
            skipped: One sentence per checkpoint that is not whole.
            facts: Fields of the start event.
        """
        self._events.emit("start", **facts, total_steps=self._total_steps)
        for sentence in skipped:
            self.warned(sentence)
        if resumed_from is None:
            return
        step = resumed_from.step
        self.beats.resumed(step)
        if self._is_first:
            self.beats.checkpoint(resumed_from)
        message = f"resumed at step {step} of {self._total_steps}"
        self._events.emit("resume", step=step, path=resumed_from.path, message=message)

    def nothing_left(self, step: int) -> None:
        """Tells that the run was complete before this attempt began."""
        message = f"resumed at step {step} of {self._total_steps}: nothing left to train"
        self._events.emit("complete", step=step, message=message)

    def trained(
        self,
        *,
        step: int,
        epoch: int | None,
        loss: float,
        lr: float,
        grad_norm: float | None,
        seconds_left: float | None = None,
        phase_seconds: dict[str, float] | None = None,
    ) -> None:
        """Tells how far the training is, with what happened since the last time it was told.

        `data_wait_seconds` is the time that this rank had no batch to train on, `cpu_percent` how
        much of a CPU its process used, `throttled_seconds` how long its container stood still.

        Args:
            step: Newest update.
            epoch: The epoch it belonged to.
            loss: Mean loss since the last time.
            lr: Learning rate of the newest update.
            grad_norm: Its norm of the gradient, where that is measured.
            seconds_left: Until the time of the run is used up, where that is limited.
            phase_seconds: How long the parts of the newest update took.
        """
        rate = self.rates.read()
        self._progress = Progress(
            step=step,
            total_steps=self._total_steps,
            epoch=epoch,
            loss=loss,
            samples_per_second=rate,
            eta_seconds=self._eta(step, rate, seconds_left),
            metrics=self._progress.metrics,
        )
        self._beat_progress()
        fields = self._progress.model_dump(exclude={"metrics"})
        fields |= {"lr": lr, "data_wait_seconds": self.data_wait.read(), **self._cpu.read()}
        if grad_norm is not None:
            fields["grad_norm"] = grad_norm
        if phase_seconds:
            fields["phase_seconds"] = phase_seconds
        if self._peak_rate is not None:
            fields["mfu"] = rate / self._peak_rate if rate else None
        self._events.emit("progress", **fields)

    def evaluated(
        self, *, step: int, epoch: int | None, metrics: dict[str, float], seconds: float
    ) -> None:
        """Tells the result of an evaluation.

        With the newest mean loss of training, and how far the evaluation's is above it.
        """
        loss, train_loss = metrics.get("loss"), self._progress.loss
        gap = {}
        if loss is not None and train_loss is not None:
            gap = {"train_loss": train_loss, "loss_gap": loss - train_loss}
        self._progress = self._progress.model_copy(
            update={"step": step, "epoch": epoch, "metrics": metrics}
        )
        self._beat_progress()
        fields = {"step": step, "epoch": epoch, "metrics": metrics, **gap, "seconds": seconds}
        self._events.emit("eval", **fields)

    def saved(self, checkpoint: CheckpointInfo, seconds: float) -> None:
        """Tells of a committed checkpoint. Rank 0 only."""
        self.beats.checkpoint(checkpoint)
        fields = {"step": checkpoint.step, "path": checkpoint.path, "seconds": seconds}
        self._events.emit("checkpoint", **fields)

    def traced(self, path: Path | None) -> None:
        """Tells of a profile that was asked for, once it is there. Rank 0 only."""
        if path is not None:
            self._events.emit("profile", path=str(path))

    def warned(self, message: str) -> None:
        """Tells of something that a person should look at, while the run goes on."""
        self._events.emit("warning", message=message)

    def noted(self, message: str) -> None:
        """Tells of something that changed by itself, as it should."""
        self._events.emit("note", message=message)

    def ended(self, event: str, **facts: Any) -> None:
        """Tells the end: `stop` or `summary`."""
        self._events.emit(event, **facts)

    def _eta(self, step: int, rate: float | None, seconds_left: float | None) -> int | None:
        """Seconds to the end: the last update or the end of the time, whichever comes first."""
        by_steps = (self._total_steps - step) * self._global_batch / rate if rate else None
        ends = [seconds for seconds in (by_steps, seconds_left) if seconds is not None]
        return round(max(0.0, min(ends))) if ends else None

    def _beat_progress(self) -> None:
        if self._is_first:
            self.beats.progress(self._progress)
