"""Extract the PromQL of a dashboard, with values in place of its variables."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

VALUES: Mapping[str, str] = {
    "namespace": "default",
    "ddpjob": "digits",
    "node": ".*",
    "operator_namespace": ".*",
    "operator": ".*",
    "__interval": "15s",
    "__rate_interval": "1m",
    "__range": "15m",
}
"""Values of all variables, for a scrape interval of 15 s."""
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_LABEL_VALUES = re.compile(r"label_values\((.+),\s*\w+\)")


def queries(dashboard: Mapping[str, Any], values: Mapping[str, str] | None = None) -> list[str]:
    """Return the expressions of all panels, annotations and variables.

    Args:
        dashboard: The JSON of the dashboard.
        values: Values of some variables, by name. All other variables have their value in VALUES.

    Raises:
        KeyError: An expression uses a variable without a value.
    """
    known = {**VALUES, **(values or {})}
    return [_fill(expression, known) for expression in _expressions(dashboard)]


def panels(dashboard: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return all panels, including those in collapsed rows, without the rows themselves."""
    found = [
        *dashboard["panels"],
        *(p for row in dashboard["panels"] for p in row.get("panels", [])),
    ]
    return [panel for panel in found if panel["type"] != "row"]


def _expressions(dashboard: Mapping[str, Any]) -> Iterator[str]:
    for panel in panels(dashboard):
        yield from (target["expr"] for target in panel["targets"])
    yield from (one["expr"] for one in dashboard["annotations"].get("list", []))
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            found = _LABEL_VALUES.fullmatch(variable["query"]["query"])
            assert found is not None, variable
            yield found[1]


def _fill(expression: str, values: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda found: values[found[1] or found[2]], expression)
