"""Checks of a run after random kills."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tests.fault_player.record import AttemptRecord

JSON = dict[str, Any]

CAUSES = {"rank": "Application", "pod": "Infrastructure", "agent": "Infrastructure"}
"""Cause that must be charged, by the kind of fault. These kinds end the attempt that they hit."""
_HARMLESS = {"operator"}
_KUBELET_LOSS_SECONDS = 60.0
"""Time after a kubelet's death in which pods of its node may still be lost, in seconds."""
_TIME_PRECISION_SECONDS = 1.0
"""Precision of times in a status, in seconds."""


@dataclass(frozen=True)
class InjectedFault:
    """One injected fault."""

    number: int
    kind: str
    """rank, pod, agent, operator or kubelet."""
    target: str
    at: float
    """Time in Unix seconds."""
    attempt: int
    """Number of the attempt at the time of the fault."""
    trained: bool
    """Whether all ranks of the attempt trained, so that no recovery was in progress."""


def overlapping_attempts(attempts: Sequence[AttemptRecord]) -> list[str]:
    """Return a message for each attempt whose updates overlap with those of the next one."""
    found = []
    trained = [attempt for attempt in attempts if attempt.updates]
    for older, newer in itertools.pairwise(trained):
        over = max(older.updates) - min(newer.updates)
        if over > 0:
            found.append(
                f"attempt {older.number} still did updates {over:.2f} s after the first update of"
                f" attempt {newer.number}"
            )
    return found


def lost_steps(attempts: Sequence[AttemptRecord]) -> list[str]:
    """Return a message for each attempt that resumed before the newest committed step."""
    found, committed = [], 0
    for attempt in attempts:
        resumed = attempt.resumed_from or 0
        if attempt.started is not None and resumed < committed:
            found.append(
                f"attempt {attempt.number} resumed from step {resumed}, but step {committed} was"
                " committed"
            )
        committed = max([committed, *attempt.saved])
    return found


def wrong_counters(status: JSON, free: int) -> list[str]:
    """Return a message for each wrong counter, given the expected number of free restarts."""
    names = ("restarts", "infrastructureRestarts", "freeRestarts")
    counts = [int(status.get(name, 0)) for name in names]
    found = []
    if sum(counts) != status["attempt"] - 1:
        found.append(
            f"counters {dict(zip(names, counts, strict=True))} do not sum to attempt"
            f" {status['attempt']} - 1"
        )
    if counts[2] != free:
        found.append(f"freeRestarts is {counts[2]}, expected {free}")
    return found


def unexplained_ends(
    ended: dict[int, JSON], faults: Sequence[InjectedFault], free: set[int]
) -> list[str]:
    """Return a message for each attempt that ended without a fault and each fault charged wrongly.

    Args:
        ended: Entries of `status.attempts` by number.
        faults: All injected faults.
        free: Numbers of attempts that ended on request.
    """
    found = []
    for number, entry in sorted(ended.items()):
        if number in free or entry["reason"] == "Completed":
            continue
        if not any(_within(fault, entry) for fault in faults):
            found.append(f"attempt {number} ended without an injected fault: {entry['message']}")
    found += [
        f"kill {fault.number} ({fault.kind}) {wrong}"
        for fault in faults
        if (wrong := _wrong_end(fault, faults, ended.get(fault.attempt)))
    ]
    return found


def _wrong_end(
    fault: InjectedFault, faults: Sequence[InjectedFault], entry: JSON | None
) -> str | None:
    """Return how an attempt's end differs from the end that a fault must cause, or None."""
    cause = CAUSES.get(fault.kind)
    if cause is None or not fault.trained:
        return None
    if entry is None:
        return f"did not end attempt {fault.attempt}"
    alone = not any(_within(o, entry) for o in faults if o.number != fault.number)
    if alone and entry.get("cause") != cause:
        return f"was charged to {entry.get('cause')}, expected {cause}: {entry['message']}"
    return None


def _within(fault: InjectedFault, entry: JSON) -> bool:
    """Return whether a fault may have ended an attempt."""
    if fault.kind in _HARMLESS:
        return False
    began, ended = _unix(entry["startTime"]), _unix(entry["endTime"])
    delay = _KUBELET_LOSS_SECONDS if fault.kind == "kubelet" else 0.0
    return began - delay - _TIME_PRECISION_SECONDS <= fault.at <= ended + _TIME_PRECISION_SECONDS


def _unix(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
