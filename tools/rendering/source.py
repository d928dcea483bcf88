"""Queries of a dashboard at a Prometheus, with the values that Grafana would give its variables."""

import json
import math
import re
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tools.dashboards.queries import VALUES, fill

JSON = dict[str, Any]
Ask = Callable[[str, Mapping[str, str]], list[JSON]]
"""Returns the result of a query to a path of the API of Prometheus."""
_MOST_STEPS = 400
"""About the width of a panel in pixels."""
_LABEL = re.compile(r"\{\{\s*(\w+)\s*\}\}")


@dataclass(frozen=True)
class Series:
    """One series of a query: its labels, and pairs of Unix seconds and value."""

    name: str
    labels: Mapping[str, str]
    points: Sequence[tuple[float, float | None]]
    """None is a step without a value."""

    @property
    def last(self) -> float | None:
        """The newest value."""
        return next((value for _, value in reversed(self.points) if value is not None), None)


@dataclass(frozen=True)
class Source:
    """A Prometheus, a time range in Unix seconds, and the values of the variables."""

    ask: Ask
    start: float
    end: float
    scrape_seconds: float
    """The scrape interval in the settings of the data source."""
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def step(self) -> float:
        """Seconds between two values of a series."""
        return max(self.scrape_seconds, math.ceil((self.end - self.start) / _MOST_STEPS))

    def query(self, target: JSON) -> list[Series]:
        """Return the series of a panel's query."""
        found = self._instant(target) if target["instant"] else self.over_time(target["expr"])
        return [
            Series(legend(target["legendFormat"], one.labels), one.labels, one.points)
            for one in found
        ]

    def over_time(self, expression: str, step: float | None = None) -> list[Series]:
        """Return the series of an expression over the time range."""
        seconds = step or self.step
        # As Grafana does, so that the same steps are evaluated at each refresh.
        start = self.start // seconds * seconds
        parameters = {
            "query": self._filled(expression),
            "start": str(start),
            "end": str(self.end),
            "step": str(seconds),
        }
        count = int((self.end - start) / seconds) + 1
        return [
            Series("", one["metric"], _complete(one["values"], start, seconds, count))
            for one in self.ask("query_range", parameters)
        ]

    def _instant(self, target: JSON) -> list[Series]:
        parameters = {"query": self._filled(target["expr"]), "time": str(self.end)}
        return [
            Series("", one["metric"], [(self.end, _number(one["value"][1]))])
            for one in self.ask("query", parameters)
        ]

    def _filled(self, expression: str) -> str:
        # The data source of Grafana lets a rate contain at least four scrapes.
        rate = max(self.step + self.scrape_seconds, 4 * self.scrape_seconds)
        given = {
            "__interval": f"{self.step:.0f}s",
            "__rate_interval": f"{rate:.0f}s",
            "__range": f"{self.end - self.start:.0f}s",
        }
        return fill(expression, {**VALUES, **given, **self.variables})


def legend(form: str, labels: Mapping[str, str]) -> str:
    """Return the name of a series."""
    if form:
        return _LABEL.sub(lambda found: labels.get(found[1], ""), form)
    listed = ", ".join(f'{name}="{value}"' for name, value in labels.items())
    return f"{{{listed}}}" if listed else ""


def prometheus(url: str) -> Ask:
    """Return a function that queries a Prometheus."""

    def ask(path: str, parameters: Mapping[str, str]) -> list[JSON]:
        address = f"{url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(address, timeout=30) as response:  # noqa: S310
            found: list[JSON] = json.load(response)["data"]["result"]
        return found

    return ask


def _complete(
    values: Sequence[tuple[float, str]], start: float, step: float, count: int
) -> list[tuple[float, float | None]]:
    """Return one point for each step, so that a gap of the series stays one."""
    known = {round((at - start) / step): _number(value) for at, value in values}
    return [(start + number * step, known.get(number)) for number in range(count)]


def _number(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None
