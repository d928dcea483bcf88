"""What must hold of a run that was struck again and again."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tests.fault_player.record import Life

JSON = dict[str, Any]

CAUSES = {"rank": "Application", "pod": "Infrastructure", "agent": "Infrastructure"}
"""Kinds of strikes that end the attempt that they hit, and whose budget it costs."""
_HARMLESS = {"operator"}
_SLOW_SECONDS = 60.0
"""How long after a kubelet's death its node's pods may still be lost to it."""
_WHOLE_SECONDS = 1.0
"""Times in a status are whole seconds."""


@dataclass(frozen=True)
class Strike:
    """One fault that was played."""

    number: int
    kind: str
    """rank, pod, agent, operator or kubelet."""
    target: str
    at: float
    """Unix seconds."""
    attempt: int
    """The attempt at that time."""
    trained: bool
    """Whether all ranks of it trained, and not a recovery was under way."""


def two_gangs(lives: Sequence[Life]) -> list[str]:
    """Attempts that did updates while another one did."""
    found = []
    trained = [life for life in lives if life.updates]
    for older, newer in itertools.pairwise(trained):
        over = max(older.updates) - min(newer.updates)
        if over > 0:
            found.append(
                f"attempt {older.attempt} still did updates {over:.2f} s after the first one of"
                f" attempt {newer.attempt}"
            )
    return found


def lost_steps(lives: Sequence[Life]) -> list[str]:
    """Attempts that went back behind what had been committed before they began."""
    found, committed = [], 0
    for life in lives:
        resumed = life.resumed_from or 0
        if life.started is not None and resumed < committed:
            found.append(
                f"attempt {life.attempt} resumed from step {resumed}, {committed} was committed"
            )
        committed = max([committed, *life.saved])
    return found


def miscounted(status: JSON, free: int) -> list[str]:
    """Counters that do not add up; so many attempts were to end at no cost."""
    names = ("restarts", "infrastructureRestarts", "freeRestarts")
    counts = [int(status.get(name, 0)) for name in names]
    found = []
    if sum(counts) != status["attempt"] - 1:
        found.append(
            f"counters {dict(zip(names, counts, strict=True))} at attempt {status['attempt']}"
        )
    if counts[2] != free:
        found.append(f"freeRestarts is {counts[2]}, {free} were to be free")
    return found


def unexplained(ended: dict[int, JSON], strikes: Sequence[Strike], free: set[int]) -> list[str]:
    """Attempts that ended without a fault, and faults that ended none or at another's expense.

    Args:
        ended: Entries of `status.attempts` by number.
        strikes: All that was played.
        free: Numbers of attempts that were ended by request.
    """
    found = []
    for number, entry in sorted(ended.items()):
        if number in free or entry["reason"] == "Completed":
            continue
        if not any(_within(strike, entry) for strike in strikes):
            found.append(f"attempt {number} ended without a fault: {entry['message']}")
    found += [
        f"kill {strike.number} ({strike.kind}) {wrong}"
        for strike in strikes
        if (wrong := _misjudged(strike, strikes, ended.get(strike.attempt)))
    ]
    return found


def _misjudged(strike: Strike, strikes: Sequence[Strike], entry: JSON | None) -> str | None:
    """What is wrong with how an attempt that trained took a strike that must end it."""
    cause = CAUSES.get(strike.kind)
    if cause is None or not strike.trained:
        return None
    if entry is None:
        return f"did not end attempt {strike.attempt}"
    alone = not any(_within(o, entry) for o in strikes if o.number != strike.number)
    if alone and entry.get("cause") != cause:
        return f"was put down to {entry.get('cause')}: {entry['message']}"
    return None


def _within(strike: Strike, entry: JSON) -> bool:
    """Whether a strike may have ended an attempt."""
    if strike.kind in _HARMLESS:
        return False
    began, ended = _unix(entry["startTime"]), _unix(entry["endTime"])
    patience = _SLOW_SECONDS if strike.kind == "kubelet" else 0.0
    return began - patience - _WHOLE_SECONDS <= strike.at <= ended + _WHOLE_SECONDS


def _unix(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
