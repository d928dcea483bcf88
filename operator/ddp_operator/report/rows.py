"""Columns of `ddpjob list`: one row of text for each job."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import ConditionType
from ddp_operator.api.summary import JobSummary
from ddp_wire.durations import duration_text

HEAD = ("NAME", "STATUS", "READY", "ATTEMPT", "PROGRESS", "LOSS", "LEFT", "AGE")
"""Columns of a normal list."""
ENDS = frozenset({"Completed", "Failed"})
"""Values of STATUS with which a job ends."""
WIDE_HEAD = (*HEAD, "SAMPLES/S", "CHECKPOINT", "GOODPUT", "MESSAGE")
"""Columns of a wide list."""
_EXACT_UNITS = 10
_UNITS = ((86_400, "d"), (3600, "h"), (60, "m"), (1, "s"))


@dataclass(frozen=True)
class JobRow:
    """One job in a list."""

    namespace: str
    state: str
    """Value of the column STATUS."""
    cells: tuple[str, ...]
    """Values of the columns in `WIDE_HEAD`."""


def state_of(job: DDPJob) -> str:
    """Return the STATUS of a job."""
    summary = job.status.condition(ConditionType.SUCCEEDED)
    return summary.reason if summary else "Pending"


def message_of(job: DDPJob) -> str:
    """Return the MESSAGE of a job: the reason for its STATUS, as a sentence."""
    summary = job.status.condition(ConditionType.SUCCEEDED)
    return summary.message if summary else ""


def deleted_row(namespace: str, job: JobSummary, now: datetime) -> JobRow:
    """Return the row of a job that is deleted and that a list of finished jobs still has."""
    created, steps = job.creation_time, job.step
    total = f"/{job.total_steps}" if job.total_steps else ""
    values = (
        job.name,
        job.state,
        "deleted",
        str(job.attempts or ""),
        f"{steps}{total}" if steps is not None else "",
        "",
        "",
        age_text((now - created).total_seconds()) if created is not None else "",
        "",
        "",
        job.goodput or "",
        job.message,
    )
    return JobRow(namespace, job.state, tuple(value or "-" for value in values))


def build_rows(jobs: Sequence[DDPJob], now: datetime) -> list[JobRow]:
    """Return one row for each job, in the order of namespaces and names."""
    ordered = sorted(jobs, key=lambda job: job.key)
    return [JobRow(job.metadata.namespace, state_of(job), _cells(job, now)) for job in ordered]


def _cells(job: DDPJob, now: datetime) -> tuple[str, ...]:
    status, created = job.status, job.metadata.creation_timestamp
    progress, saved = status.progress, status.last_checkpoint
    rate = progress.samples_per_second if progress is not None else None
    goodput = status.goodput.percent if status.goodput is not None else None
    values = (
        job.metadata.name,
        state_of(job),
        status.ready or "",
        str(status.attempt or ""),
        progress.summary if progress is not None else "",
        (progress.loss or "") if progress is not None else "",
        time_left(job),
        age_text((now - created).total_seconds()) if created is not None else "",
        f"{rate:,}" if rate is not None else "",
        age_text((now - saved.time).total_seconds()) if saved is not None else "",
        goodput or "",
        message_of(job),
    )
    return tuple(value or "-" for value in values)


def time_left(job: DDPJob) -> str:
    """Return the estimated time until the end of a running job, or "" if nothing is known."""
    progress = job.status.progress
    if progress is None or progress.eta_seconds is None or job.status.completion_time is not None:
        return ""
    return duration_text(progress.eta_seconds) if state_of(job) == "Running" else ""


def age_text(seconds: float) -> str:
    """Return an age in the style of kubectl: `12s`, `5m12s`, `3h`, `2d4h`."""
    whole = max(0, int(seconds))
    for (size, unit), (part, small) in pairwise(_UNITS):
        if whole >= size:
            rest = whole % size // part
            # A large number of units needs no second unit.
            second = f"{rest}{small}" if rest and whole < _EXACT_UNITS * size else ""
            return f"{whole // size}{unit}{second}"
    return f"{whole}s"
