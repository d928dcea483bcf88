"""Wait for a job, and print each change of its state."""

from datetime import UTC, datetime

import click

from ddp_operator.api.job import DDPJob
from ddp_operator.cli.exit_codes import CommandCode
from ddp_operator.client.jobs import ENDS, Job
from ddp_operator.report.rows import message_of, state_of, time_left


def wait_and_show(
    job: Job, states: tuple[str, ...], timeout: float | None, *, quiet: bool = False
) -> int:
    """Wait for the end of a job, or for a state. Return the exit code."""
    last = job.wait(*states, timeout=timeout, on_change=(lambda _: None) if quiet else _show_change)
    state = state_of(last)
    if state in states:
        return CommandCode.OK
    if not quiet and state in ENDS:
        click.echo(f"{state}: {message_of(last)}")
    return CommandCode.OK if state == "Completed" and not states else CommandCode.FAILED


def _show_change(job: DDPJob) -> None:
    click.echo(change_line(job, datetime.now(UTC)))


def change_line(job: DDPJob, now: datetime) -> str:
    """Return the state of a job as one line."""
    progress, clock = job.status.progress, now.astimezone().strftime("%H:%M:%S")
    parts = [f"{clock} {state_of(job)}"]
    if progress is not None:
        parts.append(f"update {progress.summary}")
        parts += [f"loss {progress.loss}"] if progress.loss is not None else []
    elif job.status.ready is not None:
        parts.append(f"{job.status.ready} nodes ready")
    if left := time_left(job):
        parts.append(f"{left} left")
    return "  ".join(parts)
