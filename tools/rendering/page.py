"""A dashboard as one self-contained HTML page: the grid of its panels with their data."""

from collections.abc import Mapping, Sequence
from typing import Any

from ddp_operator.report.chart import Mark
from ddp_operator.report.scale import duration_text, time_text
from ddp_operator.report.style import STYLE
from ddp_operator.report.text import html_text
from tools.rendering import charts, colors
from tools.rendering.source import Series, Source, legend
from tools.rendering.tables import table
from tools.rendering.units import value_text

JSON = dict[str, Any]
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE = """
main{max-width:1640px;padding:16px}
.cells{display:grid;grid-template-columns:repeat(24,minmax(0,1fr));grid-auto-rows:34px;gap:8px;
margin-top:12px}
.cells h2.row{align-self:end;font-size:16px;border-bottom:1px solid var(--line);margin:0}
.cells section{margin:0;padding:8px 10px;overflow:hidden;display:flex;flex-direction:column}
.cells h3{font-size:14px;margin:0}
.cells p{margin:0;color:var(--soft);font-size:12px;line-height:1.3}
.values{display:flex;gap:18px;flex:1;align-items:center;justify-content:space-around;font-size:26px}
.values small{display:block;font-size:13px;color:var(--soft)}
.empty{flex:1;display:flex;align-items:center;justify-content:center;color:var(--soft)}
.lines,.stacked,section>svg{margin-top:auto}
.stacked .band{opacity:.85}.state{fill:currentColor}
.cells .legend{font-size:12px;flex:none;max-height:52px;overflow:hidden}
.gauge{display:inline-block;width:120px;height:10px;background:var(--grid);margin-right:8px}
.gauge i{display:block;height:10px;background:#2f9e44}
.mark.orange{color:#e8730c}.mark.red{color:#d6293e}.mark.orange path{stroke-dasharray:3 3}
"""


def build_page(dashboard: JSON, source: Source) -> str:
    """Return a dashboard as an HTML document."""
    marks = _marks(dashboard, source)
    cells = "".join(_cell(panel, source, marks) for panel in dashboard["panels"])
    span = duration_text(source.end - source.start)
    values = ", ".join(f"{name} {value}" for name, value in source.variables.items())
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>{html_text(dashboard['title'])}</title>"
        f"<style>{STYLE}{colors.STYLE}{_STYLE}</style></head><body><main>"
        f"<header><h1>{html_text(dashboard['title'])}</h1>"
        f"<p>{html_text(dashboard['description'])} {html_text(values)}. The {html_text(span)} until"
        f" {time_text(source.end)}; times count from the start. {_keys(dashboard)}</p></header>"
        f'<div class="cells">{cells}</div><footer>Rendering of the queries of the dashboard by the'
        " tests of ddp-trainer, not by Grafana.</footer></main></body></html>\n"
    )


def _keys(dashboard: JSON) -> str:
    """Return the names of the annotations in their colors."""
    return "".join(
        f'<span style="color:{colors.NAMED[one["iconColor"]]}">▼ {html_text(one["name"])}</span> '
        for one in dashboard["annotations"].get("list", [])
    )


def _cell(panel: JSON, source: Source, marks: Sequence[Mark]) -> str:
    place = panel["gridPos"]
    style = (
        f"grid-column:{place['x'] + 1}/span {place['w']};grid-row:{place['y'] + 1}/span"
        f" {place['h']}"
    )
    title = html_text(panel["title"])
    if panel["type"] == "row":
        return f'<h2 class="row" style="{style}">{title}</h2>'
    return (
        f'<section style="{style}"><h3>{title}</h3><p>{html_text(panel["description"])}</p>'
        f"{_content(panel, source, marks)}</section>"
    )


def _content(panel: JSON, source: Source, marks: Sequence[Mark]) -> str:
    results = {target["refId"]: source.query(target) for target in panel["targets"]}
    found = [one for series in results.values() for one in series]
    if not any(one.last is not None for one in found):
        empty = panel["fieldConfig"]["defaults"]["noValue"]
        return f'<div class="empty">{html_text(empty)}</div>'
    match panel["type"]:
        case "table":
            return table(panel, results)
        case "stat":
            return _values(panel, found)
        case "state-timeline":
            return charts.states(panel, found, source, marks)
        case "timeseries":
            return charts.lines(panel, found, source, marks) + _legend(panel, found)
        case unknown:
            raise ValueError(f"unknown type of panel: {unknown}")


def _values(panel: JSON, found: Sequence[Series]) -> str:
    """Return the newest value of each series as large text."""
    mode = panel["options"]["textMode"]
    parts = []
    for one in found:
        if one.last is None:
            continue
        defaults = panel["fieldConfig"]["defaults"]
        value = html_text(value_text(one.last, defaults["unit"], defaults.get("decimals")))
        name = html_text(one.name)
        color = colors.NAMED[colors.fixed(panel, one.name) or colors.by_limit(panel, one.last)]
        named = mode == "value_and_name" or (mode == "auto" and len(found) > 1)
        text = name if mode == "name" else f"<small>{name}</small>{value}" if named else value
        parts.append(f'<span style="color:{color}">{text}</span>')
    return f'<div class="values">{"".join(parts)}</div>'


def _legend(panel: JSON, found: Sequence[Series]) -> str:
    keys = [
        f'<li><i class="s{colors.number_of(panel, one.name, place)}"></i>{html_text(one.name)}</li>'
        for place, one in enumerate(found)
    ]
    return f'<ul class="legend">{"".join(keys)}</ul>'


def _marks(dashboard: JSON, source: Source) -> list[Mark]:
    """Return the annotations of a dashboard within the time range."""
    marks: list[Mark] = []
    for annotation in dashboard["annotations"].get("list", []):
        step = float(annotation["step"].removesuffix("s"))
        for one in source.over_time(annotation["expr"], min(step, source.step)):
            title = legend(annotation["titleFormat"], one.labels)
            text = f"{title} {legend(annotation['textFormat'], one.labels)}"
            marks += [
                Mark(at - source.start, annotation["iconColor"], text)
                for at in _times(annotation, one)
                if source.start <= at <= source.end
            ]
    return marks


def _times(annotation: Mapping[str, Any], one: Series) -> list[float]:
    """Return the times of the events of a series: its values, or the begin of each run of them."""
    if annotation.get("useValueForTime"):
        return sorted({value / 1000 for _, value in one.points if value is not None})
    before = [None, *(value for _, value in one.points)]
    return [at for (at, value), last in zip(one.points, before, strict=False) if value and not last]
