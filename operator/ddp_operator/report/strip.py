"""Draw the strip of attempts: one bar per attempt over the common time axis."""

from collections.abc import Iterator, Sequence

from ddp_operator.report.chart import Canvas, Format, Mark, draw_marks, svg, time_axis
from ddp_operator.report.history import Save
from ddp_operator.report.scale import Scale
from ddp_operator.report.text import count_text, html_text
from ddp_operator.report.timeline import Row, RunTimeline
from ddp_wire.durations import duration_text

STRIP_WIDE = Format("wide", width=1160, height=86, left=64, right=14)
STRIP_NARROW = Format("narrow", width=340, height=86, left=54, right=10, time_ticks=4)
_BAR = 24
"""Height of the bar of an attempt, in pixels."""
_LABELLED = 26
"""Minimum width of a bar that shows the number of its attempt, in pixels."""
_NO_VALUES = Scale(0.0, 1.0, ())


def draw_strip(
    timeline: RunTimeline, saves: Sequence[Save], form: Format, time: Scale, marks: Sequence[Mark]
) -> str:
    """Return the strip of attempts as an SVG element."""
    canvas = Canvas(form, time, _NO_VALUES)
    parts = [*time_axis(canvas)]
    parts += _bars(timeline, canvas)
    parts += _checkpoints(saves, timeline, canvas)
    parts += draw_marks(canvas, [mark for mark in marks if mark.kind != "attempt"])
    count = count_text(len(timeline.rows), "attempt")
    description = f"{count} in {duration_text(timeline.seconds)}."
    return svg(form, "Attempts", description, parts)


def title_of(row: Row) -> str:
    """Return the tooltip of an attempt."""
    end = f": {row.reason}" if row.reason else ""
    title = f"attempt {row.number}{end}, {duration_text(row.end - row.start)}"
    return f"{title}\n{row.message}" if row.message else title


def _bars(timeline: RunTimeline, canvas: Canvas) -> Iterator[str]:
    """Draw the bars of the attempts. Draw equal bars on the same pixels only once."""
    drawn, top = set[tuple[int, int, str]](), canvas.form.top + 4
    for row in timeline.rows:
        left = canvas.x(row.start - timeline.start)
        width = max(2.0, canvas.x(row.end - timeline.start) - left)
        place = (round(left), round(width), row.kind)
        if place in drawn:
            continue
        drawn.add(place)
        yield f'<g class="bar {row.kind}"><title>{html_text(title_of(row))}</title>'
        yield f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{_BAR}" rx="3"/>'
        if width >= _LABELLED:
            yield f'<text x="{left + 8:.1f}" y="{top + 17}">{row.number}</text>'
        yield "</g>"


def _checkpoints(saves: Sequence[Save], timeline: RunTimeline, canvas: Canvas) -> Iterator[str]:
    """Draw a dot for each checkpoint below the bars, at most one per two pixels."""
    y = canvas.form.top + 4 + _BAR + 9
    places = sorted({round(canvas.x(save.time - timeline.start) / 2) * 2 for save in saves})
    if places:
        path = "".join(f"M{x} {y}h0" for x in places)
        title = count_text(len(saves), "checkpoint")
        yield f'<g class="saves"><title>{title}</title><path d="{path}"/></g>'
