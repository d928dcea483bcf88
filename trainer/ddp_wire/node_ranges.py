"""Compact text for a set of node numbers, for example `0-2,7`."""

from collections.abc import Iterable

MOST_NODES = 9999
"""Largest number of nodes of a job."""
_DIGITS = len(str(MOST_NODES))


def to_text(nodes: Iterable[int]) -> str:
    """Return the ranges of a set of node numbers, in order."""
    ranges: list[tuple[int, int]] = []
    for node in sorted(set(nodes)):
        if ranges and node == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], node)
        else:
            ranges.append((node, node))
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)


def from_text(text: str | None) -> frozenset[int]:
    """Return the node numbers that a text of `to_text` lists.

    Raises:
        ValueError: The text has another form, or a node number has too many digits.
    """
    found: set[int] = set()
    for part in (text or "").split(",") if text else ():
        first, dash, last = part.partition("-")
        low, high = _number(first), _number(last) if dash else _number(first)
        if high < low:
            raise ValueError(f"the first node of a range must not exceed the last one, got {part}")
        found.update(range(low, high + 1))
    return frozenset(found)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS):
        raise ValueError(f"a node must be a number below {MOST_NODES}, got {text[:32]!r}")
    return int(text)
