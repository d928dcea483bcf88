"""Values as text, in the units of the dashboards."""

from ddp_operator.report.scale import duration_text, number_text

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB")
_SUFFIXES = {"celsius": "°C", "watt": "W", "ops": "ops/s", "reqps": "req/s", "x": "x"}


def divisor(highest: float, unit: str) -> float:
    """Return the multiple of a unit in which the ticks of an axis are round numbers."""
    if unit == "bytes":
        return 1024.0 ** _binary_power(highest)
    if unit != "s" or highest < 60:
        return 1.0
    return 60.0 if highest < 3600 else 3600.0


def value_text(value: float, unit: str, decimals: int | None = None) -> str:
    """Return a value with its unit.

    Args:
        value: The value.
        unit: The unit in Grafana's notation.
        decimals: Digits after the point; by default as many as are useful.

    Raises:
        KeyError: The unit is unknown.
    """
    value = value if decimals is None else round(value, decimals)
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
    power = _binary_power(value)
    value /= 1024**power
    return f"{value:.3g} {_BINARY[power]}" if value < 1000 else f"{value:.0f} {_BINARY[power]}"


def _binary_power(value: float) -> int:
    """Return the power of 1024 of the largest unit that is not above a value."""
    power = 0
    while abs(value) >= 1024 ** (power + 1) and power < len(_BINARY) - 1:
        power += 1
    return power
