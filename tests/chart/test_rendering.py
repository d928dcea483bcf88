"""Renderer of the dashboards: each panel shows its data, or its text without data."""

import re
from collections.abc import Mapping
from html.parser import HTMLParser
from typing import Any

import pytest

from ddp_operator.report.text import html_text
from tests.chart.test_dashboards import DASHBOARDS, every_dashboard
from tools.dashboards.queries import panels
from tools.rendering.page import build_page
from tools.rendering.source import Ask, Source, legend
from tools.rendering.units import value_text

JSON = dict[str, Any]
START, END, STEP = 1_000_000.0, 1_000_600.0, 15.0


class Balance(HTMLParser):
    """Parser that checks that all elements are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def play(value: str) -> Ask:
    """Return a Prometheus that has one series with one value for each expression."""

    def ask(path: str, parameters: Mapping[str, str]) -> list[JSON]:
        assert "$" not in parameters["query"]
        found = re.search(r"\bby \(([^)]*)\)", parameters["query"])
        names = [name.strip() for name in found[1].split(",")] if found else []
        metric = {name: "Running" if name == "state" else f"a-{name}" for name in names}
        if path == "query":
            return [{"metric": metric, "value": [float(parameters["time"]), value]}]
        start, step = float(parameters["start"]), float(parameters["step"])
        return [{"metric": metric, "values": [[start + n * step, value] for n in (4, 5, 9)]}]

    return ask


def nothing(path: str, parameters: Mapping[str, str]) -> list[JSON]:  # noqa: ARG001
    return []


def page(name: str, ask: Ask) -> str:
    text = build_page(DASHBOARDS[name], Source(ask, START, END, STEP))
    parser = Balance()
    parser.feed(text)
    assert parser.open == []
    return text


def panel(ask: Ask, title: str, name: str = "job") -> str:
    """Return the cell of one panel of a dashboard."""
    [found] = [one for one in page(name, ask).split("<section ") if f"<h3>{title}</h3>" in one]
    return found


@every_dashboard
@pytest.mark.parametrize("ask", [play("0.5"), nothing], ids=["data", "empty"])
def test_page_shows_every_panel_in_its_place(name: str, ask: Ask) -> None:
    text = page(name, ask)
    for one in panels(DASHBOARDS[name]):
        assert f"<h3>{html_text(one['title'])}</h3>" in text
        assert f"<p>{html_text(one['description'])}</p>" in text
        place = one["gridPos"]
        assert f"grid-column:{place['x'] + 1}/span {place['w']};" in text
        empty = html_text(one["fieldConfig"]["defaults"]["noValue"])
        assert (f'<div class="empty">{empty}</div>' in text) is (ask is nothing)


def test_line_is_interrupted_where_the_series_is() -> None:
    cell = panel(play("3"), "Training loss")
    [path] = re.findall(r'<path class="line s1" d="([^"]*)"', cell)
    assert path.count("M") == 2


def test_stat_has_the_color_of_its_limit_and_the_name_of_its_state() -> None:
    assert '<span style="color:#d6293e"><small>' not in panel(play("0"), "GPU memory errors")
    assert "color:#d6293e" in panel(play("2"), "GPU memory errors")
    assert '<span style="color:#2f9e44">Running</span>' in panel(play("1"), "STATUS")


def test_table_merges_the_queries_of_a_job_into_one_row() -> None:
    cell = panel(play("0.5"), "All jobs", "fleet")
    assert cell.count("<tr>") == 2
    assert '<td style="color:#2f9e44">Running</td>' in cell
    assert '<i style="width:50.0%">' in cell


def test_failures_are_marked_at_the_time_in_their_value() -> None:
    text = page("job", play(str(1000 * (START + 300))))
    assert '<g class="mark red"><title>a-reason rank a-rank a-pod a-node</title>' in text
    assert '<g class="mark orange"><title>Attempt a-attempt starts</title>' in text


def test_attempt_is_marked_at_the_begin_of_each_run_of_values() -> None:
    marks = re.findall(
        r'<g class="mark orange">.*?d="M([\d.]+) ', panel(play("1"), "Training loss")
    )
    assert len(marks) == 2


def test_legend_of_a_series() -> None:
    assert legend("rank {{rank}}: {{ none }}", {"rank": "3"}) == "rank 3: "
    assert legend("", {"a": "b", "c": "d"}) == '{a="b", c="d"}'


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1234.0, "short", "1234"),
        (12345.678, "none", "12.3k"),
        (0.0125, "s", "12.5 ms"),
        (-75.0, "s", "-1 min 15 s"),
        (0.1234, "percentunit", "12.3%"),
        (3 << 30, "bytes", "3 GiB"),
        (1023.0, "bytes", "1023 B"),
        (61.0, "celsius", "61 °C"),
        (0.25, "suffix: s/s", "0.25 s/s"),
        (1.44, "x", "1.44 x"),
    ],
)
def test_value_in_its_unit(value: float, unit: str, text: str) -> None:
    assert value_text(value, unit) == text
