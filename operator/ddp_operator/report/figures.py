"""Build the key figures at the top of the report."""

from collections.abc import Mapping
from dataclasses import dataclass

from ddp_operator.report.goodput import TRAINING
from ddp_operator.report.history import History
from ddp_operator.report.job import JobFacts
from ddp_operator.report.scale import number_text, time_text
from ddp_operator.report.timeline import RunTimeline
from ddp_wire.durations import duration_text


@dataclass(frozen=True, slots=True)
class Figure:
    """One key figure with its label."""

    name: str
    value: str
    detail: str = ""


def build_figures(
    job: JobFacts | None, history: History, timeline: RunTimeline, goodput: Mapping[str, float]
) -> list[Figure]:
    """Return the key figures whose values are known."""
    figures = [
        _progress(job, history),
        _loss(job, history),
        *_metrics(history),
        _throughput(job, history),
        _duration(timeline),
        _attempts(job, timeline),
        _goodput(job, goodput),
        _checkpoint(job, history),
    ]
    return [figure for figure in figures if figure is not None]


def _progress(job: JobFacts | None, history: History) -> Figure | None:
    reached = max((attempt.last_step for attempt in history.attempts), default=0)
    total = history.points[-1].total_steps if history.points else None
    if job is not None and job.status.progress is not None:
        progress = job.status.progress
        reached, total = max(progress.step, reached), progress.total_steps or total
    if not reached:
        return None
    share = f"{100 * reached // total}% of {total:,}" if total else ""
    return Figure("Updates", f"{reached:,}", share)


def _loss(job: JobFacts | None, history: History) -> Figure | None:
    losses = [point.loss for point in history.points if point.loss is not None]
    if losses:
        return Figure("Training loss", number_text(losses[-1]), f"first {number_text(losses[0])}")
    shown = job.status.progress.loss if job is not None and job.status.progress else None
    return Figure("Training loss", shown) if shown is not None else None


def _metrics(history: History) -> list[Figure]:
    """Return the first metric of the newest evaluation other than the loss, or else the loss."""
    if not history.evaluations:
        return []
    newest = history.evaluations[-1]
    name = next((name for name in newest.metrics if name != "loss"), "loss")
    if name not in newest.metrics:
        return []
    detail = f"newest evaluation, update {newest.step:,}"
    return [Figure(f"Evaluation: {name}", number_text(newest.metrics[name]), detail)]


def _throughput(job: JobFacts | None, history: History) -> Figure | None:
    rates = sorted(point.rate for point in history.points if point.rate is not None)
    if rates:
        return Figure("Throughput", f"{number_text(rates[len(rates) // 2])}/s", "samples, median")
    progress = job.status.progress if job is not None else None
    if progress is None or progress.samples_per_second is None:
        return None
    return Figure("Throughput", f"{number_text(progress.samples_per_second)}/s", "samples, newest")


def _duration(timeline: RunTimeline) -> Figure | None:
    if timeline.seconds <= 0:
        return None
    return Figure("Duration", duration_text(timeline.seconds), f"from {time_text(timeline.start)}")


def _attempts(job: JobFacts | None, timeline: RunTimeline) -> Figure | None:
    count = max((row.number for row in timeline.rows), default=0)
    if not count:
        return None
    if job is None:
        return Figure("Attempts", str(count))
    status = job.status
    parts = [
        (status.restarts, "application"),
        (status.infrastructure_restarts, "infrastructure"),
        (status.free_restarts, "requested"),
    ]
    restarts = ", ".join(f"{number} {name}" for number, name in parts if number)
    return Figure("Attempts", str(count), f"restarts: {restarts}" if restarts else "no restarts")


def _goodput(job: JobFacts | None, goodput: Mapping[str, float]) -> Figure | None:
    detail = "of the time was training that was not repeated"
    if job is not None and job.goodput_percent:
        return Figure("Goodput", job.goodput_percent, detail)
    total = sum(goodput.values())
    if TRAINING not in goodput or total <= 0:
        return None
    return Figure("Goodput", f"{100 * goodput[TRAINING] / total:.1f}%", detail)


def _checkpoint(job: JobFacts | None, history: History) -> Figure | None:
    saved = [(save.step, save.time) for save in history.saves]
    if job is not None and job.status.last_checkpoint is not None:
        newest = job.status.last_checkpoint
        saved.append((newest.step, newest.time.timestamp()))
    if not saved:
        return None
    step, at = max(saved)
    interval = history.saves[-1].interval if history.saves else None
    every = f", one every {duration_text(interval)}" if interval else ""
    return Figure("Newest checkpoint", f"update {step:,}", f"{time_text(at)}{every}")
