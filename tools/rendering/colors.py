"""Colors of series: those that a panel fixes by name, and others in turn."""

from typing import Any

JSON = dict[str, Any]
_MORE = ("#d4a017", "#3b8f8c", "#8d5524", "#546e9b")
_OF_REPORT = 8
"""Colors of series in the style sheet of the report."""
_IN_TURN = _OF_REPORT + len(_MORE)
NAMED = {
    "yellow": "#c99700",
    "light-blue": "#5b9bf0",
    "green": "#2f9e44",
    "orange": "#e8730c",
    "purple": "#9c5fd6",
    "blue": "#2266d0",
    "red": "#d6293e",
    "text": "currentColor",
}
"""Grafana's names of colors."""
_NUMBERS = {name: _IN_TURN + place for place, name in enumerate(NAMED, start=1)}
STYLE = "".join(
    f".s{number}{{color:{color}}}"
    for number, color in enumerate([*_MORE, *NAMED.values()], start=_OF_REPORT + 1)
)


def number_of(panel: JSON, name: str, place: int) -> int:
    """Return the number of a series' color in the style sheet."""
    found = fixed(panel, name)
    return 1 + place % _IN_TURN if found is None else _NUMBERS[found]


def fixed(panel: JSON, name: str) -> str | None:
    """Return the name of the color that a panel fixes for a series."""
    color = properties(panel, name).get("color")
    return None if color is None else str(color["fixedColor"])


def by_limit(panel: JSON, value: float) -> str:
    """Return the name of the color of a value by the limits of its panel."""
    steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    held = [one["color"] for one in steps if one["value"] is None or value >= one["value"]]
    return str(held[-1])


def properties(panel: JSON, name: str) -> JSON:
    """Return the properties that a panel overrides for a series or column."""
    return {
        one["id"]: one["value"]
        for override in panel["fieldConfig"]["overrides"]
        if override["matcher"] == {"id": "byName", "options": name}
        for one in override["properties"]
    }
