"""The report of a run as one HTML page without scripts and without other files."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ddp_operator.report.chart import NARROW, WIDE, Chart, Mark, draw
from ddp_operator.report.charts import build_charts, build_marks
from ddp_operator.report.figures import Figure, build_figures
from ddp_operator.report.goodput import OTHER, measured_goodput
from ddp_operator.report.history import History
from ddp_operator.report.job import JobFacts
from ddp_operator.report.scale import Scale, elapsed, time_text
from ddp_operator.report.strip import STRIP_NARROW, STRIP_WIDE, draw_strip
from ddp_operator.report.style import STYLE
from ddp_operator.report.tables import attempts_table, ranks_table
from ddp_operator.report.text import count_text, html_text
from ddp_operator.report.timeline import RunTimeline, build_timeline
from ddp_wire.durations import duration_text

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""Content security policy: the browser loads nothing and runs no script."""
_KINDS = {
    "completed": "completed",
    "running": "running",
    "application": "application failure",
    "infrastructure": "pod, node or volume loss",
    "free": "requested",
    "unknown": "end without a recorded cause",
}
"""Texts that name the classes of attempts."""
_SERIES = 8
"""Number of series colors in the style sheet."""


@dataclass(frozen=True, slots=True)
class Report:
    """Data from which one report is built."""

    name: str
    """Name of the job or of the run's directory."""
    source: str
    """Origin of the data, as a phrase in the report."""
    job: JobFacts | None
    history: History
    missing: Sequence[str]
    """One sentence for each kind of data that could not be read."""
    now: float
    """Time of the report, in Unix seconds."""


def build_page(report: Report) -> str:
    """Return the report as an HTML document."""
    timeline = build_timeline(report.job, report.history, report.now)
    goodput = report.job.goodput if report.job is not None else {}
    goodput = goodput or measured_goodput(report.history, timeline)
    body = [
        _header(report),
        _figures(build_figures(report.job, report.history, timeline, goodput)),
        _missing([*report.missing, *_absent(report)]),
        _pictures(report.history, timeline),
        _goodput(goodput, counted=bool(report.job and report.job.goodput)),
        attempts_table(timeline),
        ranks_table(report.history),
        _footer(report),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html_text(report.name)}: report</title><style>{STYLE}</style></head>"
        f"<body><main>{''.join(body)}</main></body></html>\n"
    )


def _footer(report: Report) -> str:
    time, source = html_text(time_text(report.now)), html_text(report.source)
    return (
        f"<footer>Report of {time} from {source}. Times count from the start of the run.</footer>"
    )


def _header(report: Report) -> str:
    job = report.job
    if job is None:
        return f"<header><h1>{html_text(report.name)}</h1></header>"
    kind = job.state.lower() if job.state in {"Completed", "Running", "Failed"} else ""
    shape = f"{count_text(job.nodes, 'node')} with {count_text(job.ranks_per_node, 'rank')} each"
    return (
        f"<header><h1>{html_text(job.name)}"
        f'<span class="state {kind}">{html_text(job.state)}</span></h1>'
        f"<p>namespace {html_text(job.namespace)}, {shape}</p>"
        f"<p>{html_text(job.message)}</p></header>"
    )


def _figures(figures: Iterable[Figure]) -> str:
    parts = [
        f"<div><dt>{html_text(figure.name)}</dt><dd>{html_text(figure.value)}"
        f"<small>{html_text(figure.detail)}</small></dd></div>"
        for figure in figures
    ]
    return f'<dl class="figures">{"".join(parts)}</dl>'


def _absent(report: Report) -> list[str]:
    """Return a sentence for each kind of data that the run does not produce."""
    history, sentences = report.history, []
    if not history.points:
        sentences.append(
            "There is no progress event, so there are no charts. A task of the bundled trainer"
            " writes them, and so does a command with spec.checkpoint that calls"
            " ddp_trainer.report.progress."
        )
    elif not history.saves:
        sentences.append("No checkpoint was committed.")
    elif all(point.step_seconds is None for point in history.points):
        sentences.append("The events contain no times by rank.")
    if history.skipped:
        sentences.append(f"Skipped: {count_text(history.skipped, 'damaged line')}.")
    return sentences


def _missing(sentences: Sequence[str]) -> str:
    if not sentences:
        return ""
    items = "".join(f"<li>{html_text(sentence)}</li>" for sentence in sentences)
    return f'<section class="missing"><h2>Not in this report</h2><ul>{items}</ul></section>'


def _pictures(history: History, timeline: RunTimeline) -> str:
    """Return the strip of attempts and all charts, which share one time axis."""
    if not timeline.rows:
        return ""
    marks = build_marks(timeline)
    wide, narrow = (elapsed(timeline.seconds, form.time_ticks) for form in (WIDE, NARROW))
    strips = draw_strip(timeline, history.saves, STRIP_WIDE, wide, marks)
    strips += draw_strip(timeline, history.saves, STRIP_NARROW, narrow, marks)
    kinds = dict.fromkeys(row.kind for row in timeline.rows)
    legend = [f'<li><i class="square {kind}"></i>{_KINDS[kind]}</li>' for kind in kinds]
    if history.saves:
        legend.append('<li><i class="square"></i>checkpoint (dot)</li>')
    sections = [_section("Attempts", "", legend, strips, "")]
    charts = build_charts(history, timeline)
    sections += [_picture(chart, wide, narrow, marks) for chart in charts]
    return "".join(sections)


def _picture(chart: Chart, wide: Scale, narrow: Scale, marks: Sequence[Mark]) -> str:
    legend = [_key(band.label, band.color, "area") for band in chart.bands]
    legend += [_key(line.label, line.color, "") for line in chart.lines]
    pictures = draw(chart, WIDE, wide, marks) + draw(chart, NARROW, narrow, marks)
    return _section(chart.title, chart.unit, legend, pictures, chart.note)


def _key(label: str, color: int, shape: str) -> str:
    return f'<li><i class="s{color} {shape}"></i>{html_text(label)}</li>'


def _section(title: str, unit: str, legend: Sequence[str], content: str, note: str) -> str:
    units = f' <span class="note">{html_text(unit)}</span>' if unit else ""
    keys = f'<ul class="legend">{"".join(legend)}</ul>' if legend else ""
    notes = f'<p class="note">{html_text(note)}</p>' if note else ""
    head = f'<div class="head"><h2>{html_text(title)}{units}</h2>{keys}</div>'
    return f"<section>{head}{content}{notes}</section>"


def _goodput(buckets: Mapping[str, float], *, counted: bool) -> str:
    """Return the section about goodput: a bar, and its buckets with seconds and percent."""
    total = sum(buckets.values())
    if total <= 0:
        return ""
    parts, legend = [], []
    training_first = sorted(buckets.items(), key=lambda item: item[0].lower() != "training")
    for number, (name, seconds) in enumerate(training_first):
        if seconds <= 0:
            continue
        color = "free" if name == OTHER else f"s{1 + number % _SERIES}"
        share = 100 * seconds / total
        parts.append(f'<span class="{color}" style="width:{share:.2f}%"></span>')
        text = f"{_words(name)}: {duration_text(seconds)} ({share:.1f}%)"
        legend.append(f'<li><i class="square {color}"></i>{html_text(text)}</li>')
    origin = "Counted by the operator." if counted else "Computed from the events of the run."
    stack = f'<div class="stack" aria-hidden="true">{"".join(parts)}</div>'
    keys = f'<ul class="legend">{"".join(legend)}</ul>'
    return _section("Goodput: where the time went", "", [], stack + keys, origin)


def _words(name: str) -> str:
    """Return a camelCase name as separate words."""
    spaced = "".join(f" {c.lower()}" if c.isupper() and i else c for i, c in enumerate(name))
    return spaced[:1].upper() + spaced[1:] if " " not in name else name
