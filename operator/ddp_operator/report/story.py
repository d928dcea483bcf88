"""The story of a run on one screen: the lines of `ddpjob status`."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from ddp_operator.api.goodput import Bucket
from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import AttemptStatus
from ddp_operator.report.rows import message_of, state_of, time_left
from ddp_operator.report.text import count_text
from ddp_operator.report.why import since_text
from ddp_wire.durations import duration_text

SMALLEST_SHARE = 0.001
"""Minimum share of the wall-clock time for which the goodput line names a bucket."""
_SHOWN_ATTEMPTS = 5


@dataclass(frozen=True)
class Fact:
    """One line of the story."""

    label: str
    """Name of the fact, or empty for a line that continues the fact above."""
    text: str
    style: str = ""
    """Colour of the text, or empty."""


STYLES = {
    "Running": "green",
    "Completed": "green",
    "Recovering": "yellow",
    "Invalid": "red",
    "Failed": "red",
    "Suspended": "cyan",
}
"""Colour of each STATUS. Others have none."""


def tell(job: DDPJob, now: datetime, *, place: str) -> list[Fact]:
    """Return the story of a job.

    Args:
        job: The job with its status.
        now: The present time.
        place: Where the job is, for example `namespace team-a`.
    """
    return [
        *_state(job, now, place),
        *_progress(job, now),
        *_attempts(job, now),
        *_goodput(job),
        *_budgets(job),
        *([Fact("Next", job.status.next_action)] if job.status.next_action else []),
    ]


def _state(job: DDPJob, now: datetime, place: str) -> Iterator[Fact]:
    spec, state = job.spec, state_of(job)
    ranks = spec.ranks_per_node
    size = f"{count_text(job.nodes, 'node')} x {count_text(ranks, 'rank')}"
    yield Fact("Job", f"{job.metadata.name} ({place}), {size}")
    if job.status.pods is not None and job.status.pods.code_hash is not None:
        yield Fact("Code", job.status.pods.code_hash)
    yield Fact("Status", state + _duration(job, now), STYLES.get(state, ""))
    if message := message_of(job):
        yield Fact("", message)


def _duration(job: DDPJob, now: datetime) -> str:
    begin = job.status.start_time or job.metadata.creation_timestamp
    if begin is None:
        return ""
    if (end := job.status.completion_time) is not None:
        seconds = max(0.0, (end - begin).total_seconds())
        ago = since_text((now - end).total_seconds())
        return f", after {duration_text(seconds)}, {ago}"
    return f", started {since_text((now - begin).total_seconds())}"


def _progress(job: DDPJob, now: datetime) -> Iterator[Fact]:
    progress, saved = job.status.progress, job.status.last_checkpoint
    if progress is not None:
        parts = [f"update {progress.summary}"]
        parts += [f"epoch {progress.epoch}"] if progress.epoch is not None else []
        parts += [f"loss {progress.loss}"] if progress.loss is not None else []
        if progress.samples_per_second is not None:
            parts.append(f"{progress.samples_per_second:,} samples/s")
        yield Fact("Progress", ", ".join(parts))
        if left := time_left(job):
            yield Fact("", f"about {left} left")
        if progress.metrics:
            results = ", ".join(f"{name} {value}" for name, value in progress.metrics.items())
            yield Fact("Evaluation", results)
    if saved is not None:
        ago = since_text((now - saved.time).total_seconds())
        yield Fact("Checkpoint", f"update {saved.step:,}, {ago}")
        yield Fact("", saved.path)


def _attempts(job: DDPJob, now: datetime) -> Iterator[Fact]:
    status, label = job.status, "Attempts"
    recorded = {attempt.number for attempt in status.attempts}
    if status.attempt and status.attempt not in recorded and status.completion_time is None:
        began = status.attempt_start_time
        since = f", for {duration_text((now - began).total_seconds())}" if began else ""
        step = status.resumed_from_step
        resumed = f", resumed from update {step:,}" if step is not None else ""
        yield Fact(label, f"{status.attempt}: current{since}{resumed}")
        label = ""
    shown = status.attempts[::-1][:_SHOWN_ATTEMPTS]
    for attempt in shown:
        yield Fact(label, _attempt_text(attempt), "yellow" if attempt.cause else "")
        label = ""
    hidden = status.attempt - len(shown) - (status.attempt not in recorded)
    if hidden > 0:
        yield Fact("", f"and {count_text(hidden, 'earlier attempt')}")


def _attempt_text(attempt: AttemptStatus) -> str:
    lasted = ""
    if attempt.start_time is not None:
        seconds = max(0.0, (attempt.end_time - attempt.start_time).total_seconds())
        lasted = f" after {duration_text(seconds)}"
    cause = f" ({attempt.cause})" if attempt.cause is not None else ""
    saved = ""
    if attempt.end_step is not None:
        saved = f"; saved updates {attempt.start_step or 0:,} to {attempt.end_step:,}"
    message = f": {attempt.message}" if attempt.message else ""
    return f"{attempt.number}: {attempt.reason}{cause}{lasted}{saved}{message}"


def _goodput(job: DDPJob) -> Iterator[Fact]:
    goodput = job.status.goodput
    if goodput is None or goodput.percent is None:
        return
    total = sum(goodput.milliseconds(bucket) for bucket in Bucket)
    used = [bucket for bucket in Bucket if goodput.milliseconds(bucket) > SMALLEST_SHARE * total]
    used.sort(key=lambda bucket: (bucket is not Bucket.TRAINING, -goodput.milliseconds(bucket)))
    parts = (
        f"{bucket.replace('_', ' ')} {duration_text(goodput.milliseconds(bucket) / 1000)}"
        for bucket in used
    )
    yield Fact("Goodput", f"{goodput.percent}: {', '.join(parts)}")


def _budgets(job: DDPJob) -> Iterator[Fact]:
    status, spec = job.status, job.spec
    if status.restarts or status.infrastructure_restarts or status.free_restarts:
        yield Fact(
            "Restarts",
            f"{status.restarts} of {spec.max_restarts} for the application,"
            f" {status.infrastructure_restarts} of {spec.max_infrastructure_restarts} for the"
            f" infrastructure, {status.free_restarts} free",
        )
    for strike in status.strikes:
        yield Fact("Strikes", f"{strike.node}: {count_text(strike.count, 'strike')}", "yellow")
