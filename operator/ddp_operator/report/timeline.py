"""Place the attempts of a run on one time axis, from the job's status and from its history."""

from collections.abc import Mapping
from dataclasses import dataclass

from ddp_operator.api.status import Cause
from ddp_operator.report.history import Attempt, History
from ddp_operator.report.job import JobFacts, unix

_ENDS = {"summary": "Completed", "complete": "Completed", "stop": "Stopped"}
"""Ends of an attempt, by the type of its last event."""


@dataclass(frozen=True, slots=True)
class Row:
    """One attempt on the time axis."""

    number: int
    start: float
    """Start of the attempt, in Unix seconds."""
    end: float
    """End of the attempt, or its newest event while it runs, in Unix seconds."""
    reason: str
    """Reason for the end in one word; `Running` before the end; empty if unknown."""
    message: str = ""
    cause: Cause | None = None
    start_step: int | None = None
    end_step: int | None = None

    @property
    def kind(self) -> str:
        """Class of the end: running, completed, application, infrastructure or free."""
        if self.reason in {"Running", "Completed"}:
            return self.reason.lower()
        return self.cause.value.lower() if self.cause is not None else "unknown"


@dataclass(frozen=True, slots=True)
class RunTimeline:
    """All attempts of a run, and the range of the time axis."""

    rows: tuple[Row, ...]
    start: float
    end: float

    @property
    def seconds(self) -> float:
        """Return the length of the time axis."""
        return self.end - self.start


def build_timeline(job: JobFacts | None, history: History, now: float) -> RunTimeline:
    """Return all attempts that the status or the history describes.

    The status contains causes, but only for the last attempts. The history contains all attempts.
    """
    following = [*history.attempts[1:], None]
    rows = list(map(_from_history, history.attempts, following))
    if job is not None:
        found = {number: history.attempts[index] for number, index in history.newest.items()}
        for row in _from_status(job, found, now):
            if row.number in history.newest:
                rows[history.newest[row.number]] = row
            else:
                rows.append(row)
    ordered = tuple(sorted(rows, key=lambda row: (row.start, row.number)))
    times = [time for row in ordered for time in (row.start, row.end)]
    if job is not None:
        known = (job.status.start_time, job.status.completion_time)
        times += [time for time in map(unix, known) if time is not None]
    if not times:
        return RunTimeline((), now, now)
    return RunTimeline(ordered, min(times), max(times))


def _from_history(attempt: Attempt, following: Attempt | None) -> Row:
    return Row(
        number=attempt.number,
        start=attempt.start,
        end=attempt.end,
        reason=_ENDS.get(attempt.last_event, ""),
        message="" if following is None else _what_followed(following),
        start_step=attempt.resumed_from,
        end_step=attempt.last_step,
    )


def _what_followed(attempt: Attempt) -> str:
    if attempt.resumed_from is None:
        return f"attempt {attempt.number} started from the beginning"
    return f"attempt {attempt.number} resumed at step {attempt.resumed_from:,}"


def _from_status(job: JobFacts, found: Mapping[int, Attempt], now: float) -> list[Row]:
    rows: dict[int, Row] = {}
    for ended in job.attempts:
        end, first = ended.end_time.timestamp(), None
        steps = ended.start_step, ended.end_step
        if ended.number in found:
            first, last = found[ended.number].start, found[ended.number].end
            # The status knows checkpoints only. The events know every update.
            steps = found[ended.number].resumed_from, found[ended.number].last_step
            # The status has whole seconds, so the last events may seem to follow the end.
            end = last if end < last < end + 1 else end
        started = unix(ended.start_time)
        rows[ended.number] = Row(
            number=ended.number,
            start=min(time for time in (end, first, started) if time is not None),
            end=end,
            reason=ended.reason,
            message=ended.message,
            cause=ended.cause,
            start_step=steps[0],
            end_step=steps[1],
        )
    current = job.status.attempt
    if current and current not in rows and job.runs:
        start = unix(job.status.attempt_start_time)
        if start is None:
            start = found[current].start if current in found else now
        step = job.status.progress.step if job.status.progress else None
        rows[current] = Row(
            number=current,
            start=min(start, now),
            end=now,
            reason="Running",
            start_step=job.status.resumed_from_step,
            end_step=step,
        )
    return list(rows.values())
