"""All kinds of faults, a seeded sample of them, and their counts."""

import collections
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from tests.torture import damage, hostile, interruptions, races, stores, volumes
from tests.torture.lab import OUTCOMES, Bad, Case, Lab

PARTS: dict[str, Callable[[Lab], Iterator[Case]]] = {
    "interruptions": interruptions.kills,
    "power": interruptions.power_losses,
    "errors": interruptions.failures,
    "flips": damage.flips,
    "files": damage.changes,
    "writers": races.writers,
    "ranks": races.ranks,
    "full": volumes.full,
    "read-only": volumes.read_only,
    "clocks": volumes.clocks,
    "hostile": hostile.plants,
    "stores": stores.faults,
    "gangs": interruptions.gangs,
    "shards": damage.shards,
    "tenants": hostile.tenants,
}
"""Kinds of faults by the name of their part."""
ROOT = ("full", "read-only", "tenants")
"""Parts that need root."""


@dataclass(slots=True)
class Counts:
    """What happened in all cases of a fault."""

    seen: dict[str, "collections.Counter[str]"] = field(default_factory=dict)
    bad: list[str] = field(default_factory=list)
    """One text per case that failed."""

    def add(self, case: Case, outcome: str) -> None:
        """Count a case."""
        self.seen.setdefault(case.fault, collections.Counter())[outcome] += 1

    def table(self) -> str:
        """Return the counts as Markdown, a row per fault."""
        columns = (*OUTCOMES, BAD)
        head = ["fault", "cases", *columns]
        lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
        total: collections.Counter[str] = collections.Counter()
        for fault, counts in self.seen.items():
            total += counts
            lines.append(_row(fault, counts, columns))
        return "\n".join([*lines, _row("all", total, columns)])


BAD = "bad"


def _row(name: str, counts: "collections.Counter[str]", columns: Iterable[str]) -> str:
    numbers = [counts.total(), *(counts[column] for column in columns)]
    return f"| {name} | {' | '.join(map(str, numbers))} |"


def play(cases: Iterable[Case], counts: Counts, *, until: float = float("inf")) -> None:
    """Play cases one after another.

    Args:
        cases: The cases.
        counts: Where each case is counted.
        until: Value of `time.monotonic()` after which no further case begins.
    """
    for case in cases:
        if time.monotonic() > until:
            return
        try:
            counts.add(case, case.play())
        except Bad as found:
            counts.add(case, BAD)
            counts.bad.append(f"{case.fault}: {case.name}: {found}")
            print(f"BAD  {counts.bad[-1]}", file=sys.stderr, flush=True)


def sample(lab: Lab, per_part: dict[str, int]) -> Iterator[Case]:
    """Yield a seeded sample of cases, one part after another.

    Args:
        lab: The lab.
        per_part: Number of cases by part.
    """
    for part, number in per_part.items():
        cases = list(PARTS[part](lab))
        yield from lab.random(part).sample(cases, min(number, len(cases)))
