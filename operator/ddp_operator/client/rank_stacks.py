"""Stacks of ranks, as the user asked for them."""

from collections.abc import Iterable
from dataclasses import dataclass

from ddp_wire.inspections import Answer


@dataclass(frozen=True)
class RankStack:
    """Stacks of the threads of one rank."""

    rank: int
    """Global rank."""
    stacks: str
    """Text of faulthandler; or empty, or a sentence that says why the rank did not answer."""


def stacks_in(answers: Iterable[Answer]) -> list[RankStack]:
    """Return the stacks in complete answers, in the order of the ranks."""
    lines: dict[int, list[str]] = {}
    complete = set()
    for one in answers:
        if one.rank is None:
            continue
        if one.text is None:
            complete.add(one.rank)
        else:
            lines.setdefault(one.rank, []).append(one.text)
    return [RankStack(rank, "\n".join(lines.get(rank, []))) for rank in sorted(complete)]
