"""Values as text, in the units of the dashboards."""

from ddp_operator.report.scale import duration_text, number_text

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB")
_SUFFIXES = {"celsius": "°C", "watt": "W", "ops": "ops/s", "reqps": "req/s", "x": "x"}


def value_text(value: float, unit: str) -> str:
    """Return a value with its unit.

    Raises:
        KeyError: The unit is unknown.
    """
    rounded = 0.0 if abs(value) < 1e-9 else value
    if unit in {"none", "short"}:
        return number_text(_short(rounded))
    if unit == "s":
        sign = "-" if rounded < 0 else ""
        return sign + duration_text(_short(abs(rounded)))
    if unit == "percentunit":
        return f"{_short(100 * rounded):.3g}%"
    if unit == "bytes":
        return _bytes(rounded)
    suffix = unit.removeprefix("suffix:") if unit.startswith("suffix:") else f" {_SUFFIXES[unit]}"
    return number_text(_short(rounded)) + suffix


def _short(value: float) -> float:
    """Return a number with three significant digits, if it has a fraction."""
    return value if value == round(value) else float(f"{value:.3g}")


def _bytes(value: float) -> str:
    power = 0
    while abs(value) >= 1024 and power < len(_BINARY) - 1:
        value, power = value / 1024, power + 1
    return f"{value:.3g} {_BINARY[power]}" if value < 1000 else f"{value:.0f} {_BINARY[power]}"
