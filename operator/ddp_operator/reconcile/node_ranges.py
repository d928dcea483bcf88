"""Compact text for a set of node numbers, as `0-2,7`."""

from collections.abc import Iterable


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
    """Return the node numbers of `to_text`.

    Raises:
        ValueError: The text is not of this form.
    """
    found: set[int] = set()
    for part in (text or "").split(",") if text else ():
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)
