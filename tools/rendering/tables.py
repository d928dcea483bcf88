"""Table panels as HTML."""

from collections.abc import Mapping, Sequence
from typing import Any

from ddp_operator.report.text import html_text
from tools.rendering.colors import NAMED, properties
from tools.rendering.source import Series
from tools.rendering.units import value_text

JSON = dict[str, Any]
Row = dict[str, str | float | None]


def table(panel: JSON, results: Mapping[str, Sequence[Series]]) -> str:
    """Return the rows of all queries, merged by their labels, sorted as the panel says.

    Args:
        panel: The panel.
        results: Series of each query, by the query's letter.
    """
    options = next(t["options"] for t in panel["transformations"] if t["id"] == "organize")
    rows = _merged(results)
    order: Mapping[str, int] = options["indexByName"]
    hidden = options["excludeByName"]
    columns = [name for name in sorted(order, key=lambda one: order[one]) if name not in hidden]
    titles = {name: _title(panel, name, options["renameByName"]) for name in columns}
    [by] = panel["options"]["sortBy"]
    key = next(name for name, title in titles.items() if title == by["displayName"])
    rows.sort(key=lambda row: _order(row.get(key)))
    head = "".join(
        f'<th class="{_align(panel, name, titles[name])}">{html_text(titles[name])}</th>'
        for name in columns
    )
    body = "".join(
        "<tr>" + "".join(_cell(panel, titles[n], n, row.get(n)) for n in columns) + "</tr>"
        for row in rows
    )
    return f'<div class="table"><table><tr>{head}</tr>{body}</table></div>'


def _merged(results: Mapping[str, Sequence[Series]]) -> list[Row]:
    """Return rows of labels and values. Series join the first row that has all of their labels."""
    rows: list[Row] = []
    for letter, found in results.items():
        for one in found:
            labels = dict(one.labels)
            row = next((r for r in rows if labels.items() <= r.items()), None)
            if row is None:
                row = {**labels}
                rows.append(row)
            row[f"Value #{letter}"] = one.last
    return rows


def _align(panel: JSON, name: str, title: str) -> str:
    """Return the class of a column's heading: `n` above numbers."""
    gauge = properties(panel, title).get("custom.cellOptions", {}).get("type") == "gauge"
    return "n" if name.startswith("Value #") and not gauge else ""


def _title(panel: JSON, name: str, renamed: Mapping[str, str]) -> str:
    return str(properties(panel, name).get("displayName", renamed.get(name, name)))


def _order(value: str | float | None) -> tuple[int, float, str]:
    """Return a key that sorts numbers before texts, and both before nothing."""
    if isinstance(value, str):
        return (1, 0.0, value)
    return (2, 0.0, "") if value is None else (0, value, "")


def _cell(panel: JSON, title: str, name: str, value: str | float | None) -> str:
    if value is None:
        return "<td></td>"
    if isinstance(value, str):
        own = properties(panel, name)
        colors = [one["options"].get(value, {}).get("color") for one in own.get("mappings", [])]
        style = "".join(f' style="color:{NAMED[color]}"' for color in colors if color)
        text = f"<u>{html_text(value)}</u>" if "links" in own else html_text(value)
        return f"<td{style}>{text}</td>"
    own = properties(panel, title)
    text = html_text(value_text(value, own.get("unit", "none"), own.get("decimals")))
    if own.get("custom.cellOptions", {}).get("type") != "gauge":
        return f'<td class="n">{text}</td>'
    share = 100 * (value - own["min"]) / (own["max"] - own["min"])
    return f'<td><span class="gauge"><i style="width:{share:.1f}%"></i></span> {text}</td>'
