"""Build the tables of attempts and of ranks."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from ddp_operator.report.history import History, RankSpread
from ddp_operator.report.text import html_text
from ddp_operator.report.timeline import Row, RunTimeline
from ddp_wire.durations import duration_text

MOST_ROWS = 200
"""Maximum number of attempts in the table, which shows the newest ones."""


@dataclass(frozen=True, slots=True)
class Heading:
    """Heading of a column, and the CSS class of the column's cells."""

    heading: str
    style: str = ""


def attempts_table(timeline: RunTimeline) -> str:
    """Return a table of the attempts: cause, duration, steps and message."""
    if not timeline.rows:
        return ""
    columns = [
        Heading("Attempt", "n"),
        Heading("Start", "n"),
        Heading("Duration", "n"),
        Heading("Updates", "n"),
        Heading("End"),
        Heading("Cause", "word"),
        Heading("Message", "wrap"),
    ]
    rows = [_attempt(row, timeline) for row in timeline.rows[-MOST_ROWS:]]
    return _section("Attempts and faults", columns, rows, "stacked")


def ranks_table(history: History) -> str:
    """Return a table of the newest attempt's ranks, with the medians of their durations."""
    newest = max((point.attempt for point in history.points), default=0)
    number = history.attempts[newest].number if history.attempts else 0
    points = [point for point in history.points if point.attempt == newest]
    own = _medians([point.own_seconds for point in points])
    step = _medians([point.step_seconds for point in points])
    if not own or len(own) != len(step):
        return ""
    middle, largest = median(own), max(own)
    rows = []
    for rank, (own_seconds, step_seconds) in enumerate(zip(own, step, strict=True)):
        excess = 100 * (own_seconds / middle - 1)
        meter = f'<span class="meter" style="width:{100 * own_seconds / largest:.0f}%"></span>'
        cells = [str(rank), duration_text(step_seconds), duration_text(own_seconds)]
        rows.append([*map(html_text, cells), f"{round(excess):+d}%", meter])
    columns = [
        Heading("Rank", "n"),
        Heading("Update", "n"),
        Heading("Own time", "n"),
        Heading("To median", "n"),
        Heading(""),
    ]
    return _section(f"Ranks of attempt {number}", columns, rows, "ranks")


def _attempt(row: Row, timeline: RunTimeline) -> list[str]:
    steps = ""
    if row.end_step is not None:
        steps = f"{row.start_step or 0:,} to {row.end_step:,}"
    cells = [
        str(row.number),
        f"+{duration_text(row.start - timeline.start)}",
        duration_text(row.end - row.start),
        steps,
        row.reason,
        row.cause.value if row.cause is not None else "",
        row.message,
    ]
    escaped = [html_text(cell) for cell in cells]
    if escaped[4]:
        escaped[4] = f'<span class="{row.kind}">{escaped[4]}</span>'
    return escaped


def _medians(spreads: Sequence[RankSpread | None]) -> list[float]:
    """Return the median durations of each rank, or nothing if no event lists the ranks."""
    listed = [spread.by_rank for spread in spreads if spread is not None and spread.by_rank]
    if not listed or len({len(seconds) for seconds in listed}) != 1:
        return []
    return [median(seconds) for seconds in zip(*listed, strict=True)]


def _section(
    title: str, columns: Sequence[Heading], rows: Sequence[Sequence[str]], style: str
) -> str:
    """Return a table with HTML cells. With `stacked`, narrow screens show each row as a block."""
    heads = "".join(
        f'<th role="columnheader" scope="col" class="{column.style}">{column.heading}</th>'
        for column in columns
    )
    lines = []
    for row in rows:
        cells = "".join(
            f'<td role="cell" class="{column.style}" data-label="{column.heading}">{cell}</td>'
            for column, cell in zip(columns, row, strict=True)
        )
        lines.append(f'<tr role="row">{cells}</tr>')
    return (
        f'<section><div class="head"><h2>{html_text(title)}</h2></div><div class="table">'
        f'<table class="{style}" role="table"><thead role="rowgroup">'
        f'<tr role="row">{heads}</tr></thead>'
        f'<tbody role="rowgroup">{"".join(lines)}</tbody></table></div></section>'
    )
