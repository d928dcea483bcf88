"""Turn the events of a run into rows for a data frame."""

import json
import math
import re
from collections.abc import Iterable
from typing import Any

_PREFIX = re.compile(rb'^(?:\[rank 0\] ?)?(?=\{"event")')
_FIELDS = ("step", "epoch", "loss", "samples_per_second", "lr", "data_wait_seconds")
_LONGEST = 1 << 20


def metric_rows(lines: Iterable[bytes]) -> list[dict[str, Any]]:
    """Return the progress reports and evaluations of rank 0 as rows, in their order.

    A row has the keys `time` (Unix seconds), `attempt`, `kind` (progress or eval) and `step`. A row
    of progress also has `loss`, `samples_per_second` and `lr`, a row of an evaluation the name of
    each metric. Lines that are no such events are ignored.
    """
    rows = []
    for line in lines:
        begin = _PREFIX.match(line)
        if begin is None or len(line) > _LONGEST:
            continue
        try:
            event = json.loads(line[begin.end() :])
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict) and event.get("event") in {"progress", "eval"}:
            rows.append(_row(event))
    return rows


def _row(event: dict[str, Any]) -> dict[str, Any]:
    row = {"time": event.get("time"), "attempt": event.get("attempt"), "kind": event["event"]}
    if event["event"] == "progress":
        return row | {name: _number(event.get(name)) for name in _FIELDS if name in event}
    metrics = event.get("metrics")
    found = metrics if isinstance(metrics, dict) else {}
    return row | {"step": event.get("step")} | {name: _number(one) for name, one in found.items()}


def _number(value: Any) -> float | int | None:
    """Return a finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if math.isfinite(value) else None
