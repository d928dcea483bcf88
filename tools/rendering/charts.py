"""Panels over time as SVG: lines, stacked bars and bars of states."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ddp_operator.report.chart import (
    Band,
    Canvas,
    Chart,
    Format,
    Line,
    Mark,
    draw,
    draw_marks,
    svg,
    time_axis,
)
from ddp_operator.report.scale import Scale, elapsed, linear
from ddp_operator.report.text import html_text
from tools.rendering.colors import number_of
from tools.rendering.source import Series, Source
from tools.rendering.units import divisor, value_text

JSON = dict[str, Any]
_PIXELS_PER_COLUMN = 66
_PIXELS_PER_ROW = 42
_MARGINS = 34
_HEIGHT = 215
"""Height of a chart in a panel of eight rows."""
_PIXELS_PER_CHARACTER = 6.6


def form_of(panel: JSON, texts: Sequence[str]) -> Format:
    """Return the size of a chart in its panel, with space for the texts of its axis."""
    width = panel["gridPos"]["w"] * _PIXELS_PER_COLUMN - _MARGINS
    left = 14 + round(max(map(len, texts), default=0) * _PIXELS_PER_CHARACTER)
    ticks = max(3, width // 110)
    height = _HEIGHT + (panel["gridPos"]["h"] - 8) * _PIXELS_PER_ROW
    return Format("panel", width, height, left=left, right=12, time_ticks=ticks)


def time_of(source: Source, form: Format) -> Scale:
    """Return the time axis."""
    return elapsed(source.end - source.start, form.time_ticks)


def lines(panel: JSON, found: Sequence[Series], source: Source, marks: Sequence[Mark]) -> str:
    """Return the series as lines, or as stacked bars."""
    defaults = panel["fieldConfig"]["defaults"]
    stacked = "stacking" in defaults["custom"]
    bars = defaults["custom"].get("drawStyle") == "bars"
    width = (0.9 if bars else 1.0) * source.step
    drawn = [
        Line(one.name, _since(one, source), number_of(panel, one.name, place))
        for place, one in enumerate(found)
    ]
    bands = list(_stacked(drawn, width, apart=bars)) if stacked else []
    chart = Chart(
        panel["title"],
        defaults["unit"],
        [] if stacked else drawn,
        _scale(defaults),
        bands,
        text=lambda value: value_text(value, defaults["unit"]),
    )
    ticks = chart.scale(chart.values(), 4).ticks
    form = form_of(panel, [chart.text(tick) for tick in ticks])
    picture = draw(chart, form, time_of(source, form), marks)
    return f'<div class="{"stacked" if stacked else "lines"}">{picture}</div>'


def states(panel: JSON, found: Sequence[Series], source: Source, marks: Sequence[Mark]) -> str:
    """Return one row per series, with a bar for each time in which the series exists."""
    form = form_of(panel, [one.name for one in found])
    canvas = Canvas(form, time_of(source, form), linear([0.0, float(len(found))], len(found)))
    height = min(26.0, canvas.inner_height / max(1, len(found)))
    parts = list(time_axis(canvas))
    for place, one in enumerate(found):
        top = form.top + place * height
        color = number_of(panel, one.name, place)
        parts.append(
            f'<text class="tick" x="{form.left - 6}" y="{top + height / 2 + 4:.1f}"'
            f' text-anchor="end">{html_text(one.name)}</text>'
        )
        for start, end in _present(one, source):
            left, right = canvas.x(start), canvas.x(end)
            parts.append(
                f'<rect class="state s{color}" x="{left:.1f}" y="{top + 2:.1f}"'
                f' width="{max(1.0, right - left):.1f}" height="{height - 4:.1f}"/>'
            )
    parts += draw_marks(canvas, marks)
    return svg(form, panel["title"], panel["description"], parts)


def _scale(defaults: Mapping[str, Any]) -> Callable[[Sequence[float], int], Scale]:
    ends = [float(defaults[name]) for name in ("min", "max") if name in defaults]

    def scale(values: Sequence[float], count: int) -> Scale:
        every = [*values, *ends]
        unit = divisor(max(map(abs, every), default=0.0), defaults["unit"])
        found = linear([value / unit for value in every], count, from_zero=0.0 in ends)
        ticks = tuple(tick * unit for tick in found.ticks)
        return Scale(found.low * unit, found.high * unit, ticks)

    return scale


def _since(one: Series, source: Source) -> list[tuple[float, float | None]]:
    """Return the points with seconds since the start of the range, which they do not precede."""
    return [(at - source.start, value) for at, value in one.points if at >= source.start]


def _stacked(found: Sequence[Line], width: float, *, apart: bool) -> Iterator[Band]:
    """Return the values of each line on those of the lines before it.

    Args:
        found: The lines.
        width: Seconds in which each value is drawn.
        apart: Whether there is a gap between two values.
    """
    heights: dict[float, float] = {}
    for line in found:
        points: list[tuple[float, float | None, float | None]] = []
        for at, value in line.points:
            left, right = max(0.0, at - width / 2), at + width / 2
            if not value:
                points.append((left, None, None))
                continue
            low = heights.get(at, 0.0)
            heights[at] = low + value
            points += [(left, low, low + value), (right, low, low + value)]
            if apart:
                points.append((right, None, None))
        yield Band(line.label, points, line.color)


def _present(one: Series, source: Source) -> Iterator[tuple[float, float]]:
    """Return the times in which a series has values, in seconds since the start of the range."""
    begin: float | None = None
    end = 0.0
    for at, value in _since(one, source):
        if value is not None:
            begin, end = at if begin is None else begin, at + source.step
        elif begin is not None:
            yield begin, end
            begin = None
    if begin is not None:
        yield begin, min(end, source.end - source.start)
