"""Build the charts of a run from its history."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import groupby
from typing import TypeVar

from ddp_operator.report.chart import XY, Band, Chart, Line, Mark
from ddp_operator.report.history import Evaluation, History, Point, RankSpread
from ddp_operator.report.scale import linear, loss_scale, time_text
from ddp_operator.report.text import count_text
from ddp_operator.report.timeline import RunTimeline
from ddp_wire.durations import duration_text

RANK_LINES = 8
"""Maximum number of ranks that have their own line."""
METRIC_CHARTS = 6
"""Maximum number of charts of evaluation metrics. The loss has a chart of its own."""
_from_zero = partial(linear, from_zero=True)
Event = TypeVar("Event", Point, Evaluation)


def build_charts(history: History, timeline: RunTimeline) -> list[Chart]:
    """Return all charts for which the history contains values."""
    charts = [
        _loss(history, timeline),
        *_metrics(history, timeline),
        _throughput(history, timeline),
        _step_time(history, timeline),
        _own_time(history, timeline),
        _learning_rate(history, timeline),
    ]
    return [chart for chart in charts if chart.values()]


def build_marks(timeline: RunTimeline) -> list[Mark]:
    """Return marks at the start of each later attempt, and at each end that has a cause."""
    marks = []
    for row in timeline.rows:
        if row is not timeline.rows[0]:
            title = f"attempt {row.number} starts\n{time_text(row.start)}"
            marks.append(Mark(row.start - timeline.start, "attempt", title))
    for row in timeline.rows:
        if row.cause is not None:
            title = f"attempt {row.number} ends: {row.reason}\n{row.message}\n{time_text(row.end)}"
            marks.append(Mark(row.end - timeline.start, row.cause.value.lower(), title))
    return marks


def _loss(history: History, timeline: RunTimeline) -> Chart:
    training = _by_attempt(history.points, timeline, lambda point: point.loss)
    lines = [Line("training loss", training, 1)]
    evaluated = _metric("loss", history, timeline)
    if evaluated:
        lines.append(Line("evaluation loss", evaluated, 2, dots=True))
    missing = sum(point.loss is None for point in history.points)
    note = f"{count_text(missing, 'report')} without a finite loss" if missing else ""
    return Chart("Loss", "", lines, loss_scale, note=note)


def _metrics(history: History, timeline: RunTimeline) -> list[Chart]:
    names = {name: None for event in history.evaluations for name in event.metrics}
    others = [name for name in names if name != "loss"][:METRIC_CHARTS]
    return [
        Chart(
            f"Evaluation: {name}",
            "",
            [Line(name, _metric(name, history, timeline), 2, dots=True)],
            linear,
        )
        for name in others
    ]


def _throughput(history: History, timeline: RunTimeline) -> Chart:
    points = _by_attempt(history.points, timeline, lambda point: point.rate)
    line = Line("all ranks", points, 3)
    return Chart("Throughput", "samples/s", [line], _from_zero)


def _step_time(history: History, timeline: RunTimeline) -> Chart:
    spreads = _spreads(history, timeline, lambda point: point.step_seconds)
    return Chart(
        "Update time",
        "",
        [Line("median rank", [(x, s.middle if s else None) for x, s in spreads], 4)],
        _from_zero,
        [_band("fastest to slowest rank", spreads, 4)],
        duration_text,
        "Mean duration of an update since the last report. All ranks wait for the slowest one.",
    )


def _own_time(history: History, timeline: RunTimeline) -> Chart:
    spreads = _spreads(history, timeline, lambda point: point.own_seconds)
    counts = {len(spread.by_rank) for _, spread in spreads if spread is not None}
    note = "Data and forward passes of one update, before a rank waits for other ranks."
    title = "Own time of an update, by rank"
    if counts and min(counts) > 0 and max(counts) <= RANK_LINES:
        lines = [
            Line(f"rank {rank}", [(x, _of_rank(spread, rank)) for x, spread in spreads], 1 + rank)
            for rank in range(max(counts))
        ]
        return Chart(title, "", lines, _from_zero, (), duration_text, note)
    lines = [
        Line("slowest rank", [(x, s.high if s else None) for x, s in spreads], 5),
        Line("median rank", [(x, s.middle if s else None) for x, s in spreads], 4),
    ]
    bands = [_band("fastest to slowest rank", spreads, 4)]
    return Chart(title, "", lines, _from_zero, bands, duration_text, note)


def _learning_rate(history: History, timeline: RunTimeline) -> Chart:
    points = _by_attempt(history.points, timeline, lambda point: point.learning_rate)
    return Chart("Learning rate", "", [Line("learning rate", points, 6)], _from_zero)


def _of_rank(spread: RankSpread | None, rank: int) -> float | None:
    return spread.by_rank[rank] if spread is not None and rank < len(spread.by_rank) else None


def _band(label: str, spreads: Sequence[tuple[float, RankSpread | None]], color: int) -> Band:
    points = [(x, s.low if s else None, s.high if s else None) for x, s in spreads]
    return Band(label, points, color)


def _metric(name: str, history: History, timeline: RunTimeline) -> list[XY]:
    events = [event for event in history.evaluations if name in event.metrics]
    return _by_attempt(events, timeline, lambda event: event.metrics[name])


def _by_attempt(
    events: Iterable[Event], timeline: RunTimeline, value: Callable[[Event], float | None]
) -> list[XY]:
    """Return values over time, with an interruption between two attempts."""
    return [(x, None if event is None else value(event)) for x, event in _placed(events, timeline)]


def _spreads(
    history: History, timeline: RunTimeline, value: Callable[[Point], RankSpread | None]
) -> list[tuple[float, RankSpread | None]]:
    """Return ranges of values over time, with an interruption between two attempts."""
    placed = _placed(history.points, timeline)
    return [(x, None if point is None else value(point)) for x, point in placed]


def _placed(events: Iterable[Event], timeline: RunTimeline) -> list[tuple[float, Event | None]]:
    """Return events with their seconds since the start of the axis, and None after each attempt."""
    placed: list[tuple[float, Event | None]] = []
    ordered = sorted(events, key=lambda event: (event.attempt, event.time))
    for _, group in groupby(ordered, key=lambda event: event.attempt):
        placed += [(event.time - timeline.start, event) for event in group]
        placed.append((placed[-1][0], None))
    return placed
