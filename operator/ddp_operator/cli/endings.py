"""Messages about the end of a local run, and about where the next run of the job continues."""

from pathlib import Path

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import DDPJobStatus

AGAIN = "Run the same command again to"
_AT_ONCE = "press Ctrl-C again to stop at once"


def interrupt_sentence(job: DDPJob) -> str:
    """Return a message about the effect of the first Ctrl-C."""
    if job.spec.checkpoint is None:
        doing = "stopping without a checkpoint, because the job has no spec.checkpoint"
    elif job.spec.task is None:
        doing = "stopping; the program gets SIGTERM and may save"
    else:
        doing = "saving a checkpoint"
    return f"Interrupted: {doing} ({_AT_ONCE})"


def stop_sentence(job: DDPJob, status: DDPJobStatus, *, at_once: bool) -> str:
    """Return a message about what a stopped run has saved and where the next run begins.

    Args:
        job: The job of the run.
        status: The job's last status.
        at_once: Whether a second Ctrl-C ended the pods before they could save.
    """
    checkpoint, progress = status.last_checkpoint, status.progress
    reached = progress.step if progress is not None else 0
    if checkpoint is None:
        stopped = "Stopped at once: nothing was saved." if at_once else "Stopped."
        if job.spec.task is None:
            return f"{stopped} {AGAIN} start the program again."
        return f"{stopped} {AGAIN} train from the beginning."
    resume = f"{AGAIN} resume there."
    if at_once:
        return f"Stopped at once: nothing was saved since update {checkpoint.step}. {resume}"
    if checkpoint.step < reached:
        return (
            f"Stopped. The newest checkpoint is of update {checkpoint.step}, and the run had"
            f" reached update {reached}. {resume}"
        )
    return f"Stopped: update {checkpoint.step} is saved. {resume}"


def volume_sentence(failure: str, home: Path) -> str:
    """Return a message that the run ends because its volume failed, and a retry would fail too."""
    reason = failure.rstrip(".")
    return f"Failed: {reason}. Make room for {home}, then run the same command again to resume."


def finished_sentence(step: int, home: Path) -> str:
    """Return a message for a run whose job has already completed its training."""
    return (
        f"Nothing is left to train: the checkpoint of update {step} passed its checks. To train"
        f" again, remove {home}"
    )
