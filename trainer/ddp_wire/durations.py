"""Text for durations."""

from itertools import pairwise

_MINUTE = 60
_UNITS = (("d", 86_400), ("h", 3600), ("min", _MINUTE), ("s", 1))


def duration_text(seconds: float) -> str:
    """Return a duration in its two largest units, for example `1 h 20 min`."""
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms" if seconds > 0 else "0 s"
    if seconds < _MINUTE:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    for (large, size), (small, part) in pairwise(_UNITS):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {large} {rest} {small}" if rest else f"{whole // size} {large}"
    return f"{whole} s"
