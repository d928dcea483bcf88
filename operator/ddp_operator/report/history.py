"""Read the events of a run from its history or from a log.

The lines come from pods, so any field may be missing, huge or of a wrong type. Such a field counts
as absent.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from ddp_wire.text_events import event_in

MOST_TEXT = 80
"""Maximum number of characters of a name in an event."""
MOST_METRICS = 16
"""Maximum number of metrics of one evaluation."""
_LARGEST_INTEGER = 2**53
_LATEST_TIME = 253_402_300_799.0
"""End of the year 9999 in Unix seconds."""
_LOG_PREFIX = re.compile(rb'^(?:\[[^\]]{0,64}\] ?)?(?=\{"event"|\d{4}-\d\d-\d\dT)')
"""Pattern of torchrun's rank prefix in front of an event in a log."""


@dataclass(frozen=True, slots=True)
class RankSpread:
    """One duration, measured by all ranks, in seconds."""

    low: float
    middle: float
    """Median duration over the ranks."""
    high: float
    slowest: int
    """Rank with the longest duration."""
    by_rank: tuple[float, ...] = ()
    """Duration of each rank. Empty for a run of many ranks."""


@dataclass(frozen=True, slots=True)
class Point:
    """One progress event of a run."""

    time: float
    """Time of the event, in Unix seconds."""
    attempt: int
    """Index of the event's attempt in `History.attempts`."""
    step: int
    total_steps: int | None
    loss: float | None
    """Mean training loss since the last progress event. None if it was not finite."""
    rate: float | None
    """Samples per second over all ranks."""
    learning_rate: float | None
    step_seconds: RankSpread | None
    """Duration of an update."""
    own_seconds: RankSpread | None
    """Time for data and forward passes in one update."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Results of one evaluation."""

    time: float
    attempt: int
    step: int
    metrics: Mapping[str, float]
    seconds: float


@dataclass(frozen=True, slots=True)
class Save:
    """One committed checkpoint."""

    time: float
    attempt: int
    step: int
    seconds: float
    interval: float | None = None
    """Seconds between two checkpoints. None if no clock decides."""


@dataclass(slots=True)
class Attempt:
    """One attempt, as the events of the run describe it."""

    number: int
    start: float
    """Time of the attempt's first event, in Unix seconds."""
    end: float
    """Time of the attempt's last event, in Unix seconds."""
    resumed_from: int | None = None
    world_size: int | None = None
    last_event: str = ""
    last_step: int = 0


@dataclass(slots=True)
class History:
    """All events of a run."""

    points: list[Point] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    saves: list[Save] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    """Attempts in the order in which they started."""
    newest: dict[int, int] = field(default_factory=dict)
    """Index of the attempt with the highest number, the latest one of equal numbers."""
    skipped: int = 0
    """Number of damaged lines that look like events."""


def read_history(lines: Iterable[bytes]) -> History:
    """Return the events in the lines of a history or of a log.

    Args:
        lines: Lines of any kind. Lines that are not events of global rank 0 are ignored.
    """
    found = History()
    for line in lines:
        start = _LOG_PREFIX.match(line)
        if start is None:
            continue
        body = line[start.end() :]
        if not body.startswith(b"{"):
            if (event := event_in(body.decode(errors="replace").strip())) is not None:
                _add(found, event)
            continue
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            found.skipped += 1
            continue
        if isinstance(document, dict) and document.get("rank") == 0:
            _add(found, document)
    return found


def _add(found: History, event: Mapping[str, Any]) -> None:
    at, number, kind = _number(event.get("time")), _whole(event.get("attempt")), event.get("event")
    if at is None or number is None or not 0 <= at <= _LATEST_TIME or not isinstance(kind, str):
        found.skipped += 1
        return
    step = _whole(event.get("step", event.get("steps", 0))) or 0
    if number not in found.newest or kind == "start":
        found.newest[number] = len(found.attempts)
        found.attempts.append(Attempt(number, at, at))
    index = found.newest[number]
    attempt = found.attempts[index]
    attempt.start, attempt.last_step = min(attempt.start, at), max(attempt.last_step, step)
    if at >= attempt.end:
        attempt.end, attempt.last_event = at, kind[:MOST_TEXT]
    seconds = max(0.0, _number(event.get("seconds")) or 0.0)
    match kind:
        case "start":
            attempt.world_size = _whole(event.get("world_size"))
        case "resume":
            attempt.resumed_from = step
        case "progress":
            found.points.append(_point(event, at, index, step))
        case "eval":
            metrics = _metrics(event.get("metrics"))
            found.evaluations.append(Evaluation(at, index, step, metrics, seconds))
        case "checkpoint":
            interval = _number(event.get("interval_seconds"))
            found.saves.append(Save(at, index, step, seconds, interval))
        case _:
            pass


def _point(event: Mapping[str, Any], at: float, attempt: int, step: int) -> Point:
    return Point(
        time=at,
        attempt=attempt,
        step=step,
        total_steps=_whole(event.get("total_steps")),
        loss=_number(event.get("loss")),
        rate=_number(event.get("samples_per_second")),
        learning_rate=_number(event.get("lr")),
        step_seconds=_spread(event.get("step_seconds")),
        own_seconds=_spread(event.get("own_seconds")),
    )


def _spread(value: Any) -> RankSpread | None:
    """Return the spread of a duration, from a list of all ranks or from min, median and max."""
    if isinstance(value, list):
        seconds = [number for number in map(_number, value) if number is not None and number > 0]
        if not seconds or len(seconds) != len(value):
            return None
        slowest = max(range(len(seconds)), key=seconds.__getitem__)
        return RankSpread(min(seconds), median(seconds), seconds[slowest], slowest, tuple(seconds))
    if not isinstance(value, dict):
        return None
    low, middle, high = (_number(value.get(name)) for name in ("min", "median", "max"))
    slowest = _whole(value.get("slowest")) or 0
    if low is None or middle is None or high is None or low <= 0:
        return None
    return RankSpread(low, middle, high, slowest)


def _metrics(value: Any) -> dict[str, float]:
    if not isinstance(value, dict):
        return {}
    first = list(value.items())[:MOST_METRICS]
    numbers = ((name[:MOST_TEXT], _number(number)) for name, number in first)
    return {name: number for name, number in numbers if number is not None}


def _number(value: Any) -> float | None:
    """Return a finite number, or None for any other value."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) and abs(number) < 1e300 else None  # noqa: PLR2004


def _whole(value: Any) -> int | None:
    """Return a whole number from 0 to 2^53, or None for any other value."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value <= _LARGEST_INTEGER else None
