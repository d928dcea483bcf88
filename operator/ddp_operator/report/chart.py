"""Charts as static SVG. All charts of a page have the same time axis."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ddp_operator.report.scale import Scale, number_text
from ddp_operator.report.text import html_text
from ddp_wire.durations import duration_text

XY = tuple[float, float | None]
"""Point of a line: seconds since the start of the axis, and a value. None interrupts the line."""
_PIXELS_PER_BUCKET = 2.0
"""Width in pixels in which a dense line keeps only its lowest, highest and mean value."""
_PIXELS_PER_DOT = 8
"""Minimum mean distance between points, in pixels, at which a line shows its dots."""
_HOVERS = 60
"""Maximum number of positions in a chart at which the pointer shows values."""


@dataclass(frozen=True, slots=True)
class Format:
    """Size of a chart and its margins, in pixels."""

    name: str
    width: int
    height: int
    left: int
    right: int
    top: int = 12
    bottom: int = 26
    time_ticks: int = 10
    value_ticks: int = 4


WIDE = Format("wide", width=1160, height=190, left=64, right=14)
NARROW = Format("narrow", width=340, height=170, left=54, right=10, time_ticks=4)


@dataclass(frozen=True, slots=True)
class Line:
    """A line through values over time."""

    label: str
    points: Sequence[XY]
    color: int
    """Number of the line's color in the style sheet, from 1."""
    dots: bool = False
    """Whether to show a dot at each point, if there is enough space."""


@dataclass(frozen=True, slots=True)
class Band:
    """The area between two values over time."""

    label: str
    points: Sequence[tuple[float, float | None, float | None]]
    """Points of the area: seconds, lower value and upper value."""
    color: int


@dataclass(frozen=True, slots=True)
class Mark:
    """A vertical line at one time."""

    at: float
    """Time of the mark, in seconds since the start of the axis."""
    kind: str
    """Class of the mark in the style sheet: attempt, application, infrastructure or free."""
    title: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart with its lines and bands over the common time axis."""

    title: str
    unit: str
    lines: Sequence[Line]
    scale: Callable[[Sequence[float], int], Scale]
    bands: Sequence[Band] = ()
    text: Callable[[float], str] = number_text
    note: str = ""

    def values(self) -> list[float]:
        """Return the values of all lines and bands."""
        found = [y for line in self.lines for _, y in line.points if y is not None]
        for band in self.bands:
            found += [y for _, *ends in band.points for y in ends if y is not None]
        return found


class Canvas:
    """Conversion from times and values to the pixels of one chart."""

    def __init__(self, form: Format, time: Scale, value: Scale) -> None:
        self.form, self.time, self.value = form, time, value
        self.inner_width = form.width - form.left - form.right
        self.inner_height = form.height - form.top - form.bottom

    def x(self, seconds: float) -> float:
        """Return the horizontal position of a time, in pixels."""
        return self.form.left + self.time.position(seconds) * self.inner_width

    def y(self, value: float) -> float:
        """Return the vertical position of a value, in pixels."""
        return self.form.top + (1 - self.value.position(value)) * self.inner_height


def draw(chart: Chart, form: Format, time: Scale, marks: Sequence[Mark]) -> str:
    """Return a chart as an SVG element."""
    canvas = Canvas(form, time, chart.scale(chart.values(), form.value_ticks))
    parts = [*_value_axis(chart, canvas), *time_axis(canvas)]
    parts += [_draw_band(band, canvas) for band in chart.bands]
    parts += [part for line in chart.lines for part in _draw_line(line, canvas)]
    if form is WIDE:
        parts += _hovers(chart, canvas)
    parts += draw_marks(canvas, marks)
    return svg(form, chart.title, describe(chart), parts)


def svg(form: Format, title: str, description: str, parts: Sequence[str]) -> str:
    """Return an SVG element that a screen reader reads as one picture."""
    return (
        f'<svg class="{form.name}" viewBox="0 0 {form.width} {form.height}" role="img"'
        f' aria-label="{html_text(f"{title}. {description}")}">' + "".join(parts) + "</svg>"
    )


def describe(chart: Chart) -> str:
    """Return the range and the last value of each line, as a sentence."""
    sentences = []
    for line in chart.lines[:8]:
        values = [y for _, y in line.points if y is not None]
        if values:
            low, high, last = (chart.text(v) for v in (min(values), max(values), values[-1]))
            sentences.append(f"{line.label}: from {low} to {high}, last {last}.")
    return " ".join(sentences)


def time_axis(canvas: Canvas) -> Iterator[str]:
    """Draw the ticks and labels of the time axis."""
    form, bottom = canvas.form, canvas.form.height - canvas.form.bottom
    for tick in canvas.time.ticks:
        x = canvas.x(tick)
        anchor = "end" if x > form.width - form.right - 24 and tick else "middle"
        text = "start" if tick == 0 else duration_text(tick)
        yield f'<path class="grid" d="M{x:.1f} {form.top}V{bottom}"/>'
        yield f'<text class="tick" x="{x:.1f}" y="{bottom + 17}" text-anchor="{anchor}">'
        yield f"{html_text(text)}</text>"


def draw_marks(canvas: Canvas, marks: Sequence[Mark]) -> Iterator[str]:
    """Draw vertical lines with tooltips. Draw equal marks on one pixel only once."""
    form, drawn = canvas.form, set[tuple[int, str]]()
    for mark in marks:
        x = canvas.x(mark.at)
        if (round(x), mark.kind) in drawn:
            continue
        drawn.add((round(x), mark.kind))
        bottom = form.height - form.bottom
        head = "" if mark.kind == "attempt" else f"M{x - 4:.1f} {form.top - 7}h8l-4 7z"
        yield f'<g class="mark {mark.kind}"><title>{html_text(mark.title)}</title>'
        yield f'<path d="M{x:.1f} {form.top}V{bottom}"/><path class="head" d="{head}"/>'
        yield f'<path class="target" d="M{x:.1f} {form.top - 7}V{bottom}"/></g>'


def _value_axis(chart: Chart, canvas: Canvas) -> Iterator[str]:
    form = canvas.form
    for tick in canvas.value.ticks:
        y = canvas.y(tick)
        yield f'<path class="grid" d="M{form.left} {y:.1f}H{form.width - form.right}"/>'
        yield f'<text class="tick" x="{form.left - 6}" y="{y + 4:.1f}" text-anchor="end">'
        yield f"{html_text(chart.text(tick))}</text>"


def _draw_line(line: Line, canvas: Canvas) -> Iterator[str]:
    """Draw a line. A dense line becomes a mean line and a band from lowest to highest value.

    So the size of the path depends only on the width of the chart.
    """
    segments = _segments(line.points, canvas)
    count = sum(map(len, segments))
    if count > canvas.inner_width:
        buckets = [_buckets(segment, canvas) for segment in segments]
        yield _area([[(b.x, b.low, b.high) for b in found] for found in buckets], line.color)
        segments = [[(b.x, b.mean) for b in found] for found in buckets]
    else:
        segments = [[(canvas.x(x), canvas.y(y)) for x, y in segment] for segment in segments]
    path = ["M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in segment) for segment in segments]
    yield f'<path class="line s{line.color}" d="{"".join(path)}"/>'
    sparse = line.dots and count < canvas.inner_width / _PIXELS_PER_DOT
    dotted = [segment for segment in segments if sparse or len(segment) == 1]
    if dotted:
        dots = "".join(f"M{x:.1f} {y:.1f}h0" for segment in dotted for x, y in segment)
        yield f'<path class="dots s{line.color}" d="{dots}"/>'


def _draw_band(band: Band, canvas: Canvas) -> str:
    areas = []
    for low, high in zip(
        _segments([(x, None if high is None else low) for x, low, high in band.points], canvas),
        _segments([(x, None if low is None else high) for x, low, high in band.points], canvas),
        strict=True,
    ):
        pairs = zip(_buckets(low, canvas), _buckets(high, canvas), strict=True)
        areas.append([(lower.x, lower.low, upper.high) for lower, upper in pairs])
    return _area(areas, band.color)


def _area(areas: Sequence[Sequence[tuple[float, float, float]]], color: int) -> str:
    """Return the areas between two lines as pixels: horizontal position, lower and upper edge."""
    path = []
    for area in areas:
        outline = [(x, high) for x, _, high in area] + [(x, low) for x, low, _ in reversed(area)]
        path.append("M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in outline) + "Z")
    return f'<path class="band s{color}" d="{"".join(path)}"/>'


def _hovers(chart: Chart, canvas: Canvas) -> Iterator[str]:
    """Draw invisible columns that show the values of all lines under the pointer."""
    columns: dict[int, list[str]] = {}
    times: dict[int, float] = {}
    width = canvas.inner_width / _HOVERS
    for line in chart.lines[:8]:
        nearest: dict[int, tuple[float, float]] = {}
        for x, y in line.points:
            if y is not None:
                nearest[min(_HOVERS - 1, int(canvas.time.position(x) * _HOVERS))] = (x, y)
        for column, (x, y) in nearest.items():
            times[column] = x
            columns.setdefault(column, []).append(f"{line.label}: {chart.text(y)} {chart.unit}")
    for column, texts in sorted(columns.items()):
        title = "\n".join([f"after {duration_text(times[column])}", *texts])
        left = canvas.form.left + column * width
        yield f'<rect class="hover" x="{left:.1f}" y="{canvas.form.top}" width="{width:.1f}"'
        yield f' height="{canvas.inner_height}"><title>{html_text(title)}</title></rect>'


def _segments(points: Sequence[XY], canvas: Canvas) -> list[list[tuple[float, float]]]:
    """Return the parts of a line between visible interruptions, at most one per few pixels."""
    segments: list[list[tuple[float, float]]] = []
    interrupted, last = True, -math.inf
    for at, value in points:
        if value is None:
            interrupted = True
            continue
        x = canvas.x(at)
        if interrupted and abs(x - last) >= _PIXELS_PER_BUCKET:
            segments.append([])
        segments[-1].append((at, value))
        interrupted, last = False, x
    return segments


@dataclass(frozen=True, slots=True)
class _Bucket:
    """Values of a line within a few pixels, as positions in the chart."""

    x: float
    low: float
    high: float
    mean: float


def _buckets(segment: list[tuple[float, float]], canvas: Canvas) -> list[_Bucket]:
    values: dict[int, list[float]] = {}
    places: dict[int, float] = {}
    for at, value in segment:
        x = canvas.x(at)
        number = math.floor(x / _PIXELS_PER_BUCKET)
        values.setdefault(number, []).append(value)
        places.setdefault(number, x)
    return [
        _Bucket(places[n], canvas.y(min(v)), canvas.y(max(v)), canvas.y(math.fsum(v) / len(v)))
        for n, v in values.items()
    ]
