"""Events of a run as lines for people, and the events in such lines.

    2026-11-29T14:03:21Z [attempt 2] step 120 of 480: loss 0.31, lr 0.05, 812 samples/s, 27 s left

`ddpjob report` draws its charts from the log of a pod if it cannot read the run's directory. So the
lines of the events that it draws can be read again. A line leaves out what only the charts of the
run's history show, for example the durations of each rank.
"""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from ddp_wire.durations import duration_text

Event = Mapping[str, Any]

_HEAD = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ) \[attempt (\d{1,9})\] (.*)", re.DOTALL)
_START = re.compile(r"start: (\d{1,7}) ranks? ")
_RESUME = re.compile(r"resumed at step (\d{1,15}) ")
_STEP = re.compile(r"step (\d{1,15}) of (\d{1,15}): (.*)")
_EVALUATION = re.compile(r"evaluation at step (\d{1,15}): (.*) \(([^ ]*) s\)")
_SAVE = re.compile(r"checkpoint of step (\d{1,15}) in ([^ ]*) s: ")
_END = re.compile(r"(stop|summary): (\d{1,15}) of ")
_MESSAGES = frozenset({"note", "ok", "warning"})
_LONGEST = 4096
"""Longest line, in characters, in which an event is looked for."""


def text_of(event: Event) -> str:
    """Return the line of an event, without a line break.

    Args:
        event: JSON values, with the fields `event`, `time`, `rank` and `attempt`.
    """
    clock = datetime.fromtimestamp(event["time"], UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    attempt = f"[attempt {event['attempt']}] " if event["attempt"] else ""
    rank = f"rank {event['rank']}: " if event["rank"] else ""
    try:
        body = _BODIES.get(event["event"], _other)(event)
    except (KeyError, TypeError, ValueError):  # A line of a log must never end a run.
        body = _other(event)
    return f"{clock} {attempt}{rank}{' '.join(body.split())}"


def event_in(line: str) -> dict[str, Any] | None:
    """Return the event of global rank 0 in a line, or None.

    It has the fields that the line contains, under their names in the event.
    """
    head = _HEAD.fullmatch(line) if len(line) <= _LONGEST else None
    found = _read(head[3]) if head is not None else None
    if head is None or found is None:
        return None
    try:
        time = datetime.strptime(head[1], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError:
        return None
    return {**found, "time": time.timestamp(), "rank": 0, "attempt": int(head[2])}


def _start(event: Event) -> str:
    size, batch = event.get("world_size", 1), event.get("global_batch")
    parts = [f"start: {size} rank{'' if size == 1 else 's'} on {event.get('device', 'cpu')}"]
    parts += [str(event[name]) for name in ("strategy", "precision", "task") if event.get(name)]
    if event.get("total_steps") is not None:
        parts.append(f"{event['total_steps']} updates of {batch} samples")
    return ", ".join(parts)


def _progress(event: Event) -> str:
    values = [_value("loss", event.get("loss"))]
    values += [_value(*one) for one in (event.get("loss_parts") or {}).items()]
    values.append(_value("lr", event.get("lr")))
    if "grad_norm" in event:
        values.append(_value("gradient norm", event["grad_norm"]))
    rate, mfu, left = (event.get(name) for name in ("samples_per_second", "mfu", "eta_seconds"))
    if rate is not None:
        values.append(f"{_number(rate)} samples/s")
    if mfu is not None:
        values.append(f"{100 * mfu:.3g} % MFU")
    if left is not None:
        values.append(f"{duration_text(left)} left")
    if behind := event.get("mirror_behind_seconds"):
        values.append(f"mirror {duration_text(behind)} behind")
    return f"step {event['step']} of {event['total_steps']}: {', '.join(values)}"


def _evaluation(event: Event) -> str:
    values = [_value(name, value) for name, value in event["metrics"].items()]
    if "train_loss" in event:
        values.append(_value("training loss", event["train_loss"]))
    text = f"evaluation at step {event['step']}: {', '.join(values) or 'no metrics'}"
    return f"{text} ({_number(event['seconds'])} s)"


def _save(event: Event) -> str:
    return f"checkpoint of step {event['step']} in {_number(event['seconds'])} s: {event['path']}"


def _message(event: Event) -> str:
    kind = event["event"]
    return f"{kind}: {event['message']}" if kind in _MESSAGES else str(event["message"])


def _check(event: Event) -> str:
    size = "" if event.get("size") is None else f" of {event['size']}"
    columns = [f"{name} {text}" for name, text in event["columns"].items()]
    read = f"check: read {event['samples']}{size} samples of {event['data']}"
    return "; ".join([read, *columns, _value("loss", event["loss"])])


def _end(event: Event) -> str:
    rate, path = event.get("samples_per_second"), event.get("checkpoint")
    parts = [
        f"{event['event']}: {event['steps']} of {event['total_steps']} updates",
        f"{event['samples']} samples in {duration_text(event['seconds'])}",
    ]
    parts += [] if rate is None else [f"{_number(rate)} samples/s"]
    parts += [_value(name, value) for name, value in (event.get("metrics") or {}).items()]
    parts += [f"signal {event['signal']}"] if event.get("signal") else []
    return ", ".join([*parts, f"checkpoint {path}"] if path else parts)


def _other(event: Event) -> str:
    """Return the fields of an event that has no form of its own."""
    head = {"event", "time", "rank", "attempt"}
    fields = ((name, value) for name, value in event.items() if name not in head)
    return f"{event['event']}: " + ", ".join(_value(name, value) for name, value in fields)


_BODIES: Mapping[str, Callable[[Event], str]] = {
    "start": _start,
    "resume": _message,
    "complete": _message,
    "progress": _progress,
    "eval": _evaluation,
    "checkpoint": _save,
    "check": _check,
    "ok": _message,
    "note": _message,
    "warning": _message,
    "stop": _end,
    "summary": _end,
}


def _value(name: str, value: object) -> str:
    return f"{name.replace('_', ' ')} {_number(value)}"


def _number(value: object) -> str:
    if value is None:
        return "not finite"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _read(body: str) -> dict[str, Any] | None:
    """Return the fields of an event from the part of its line after the attempt."""
    if found := _STEP.fullmatch(body):
        values = dict(_pairs(found[3]))
        fields = {"event": "progress", "step": int(found[1]), "total_steps": int(found[2])}
        fields |= {name: values[name] for name in ("loss", "lr") if name in values}
        rate = re.search(r"(?:^|, )([^ ,]+) samples/s", found[3])
        return fields | ({"samples_per_second": _float(rate[1])} if rate else {})
    if found := _EVALUATION.fullmatch(body):
        metrics = dict(_pairs(found[2]))
        metrics.pop("training loss", None)
        step, seconds = int(found[1]), _float(found[3])
        return {"event": "eval", "step": step, "metrics": metrics, "seconds": seconds}
    if found := _SAVE.match(body):
        return {"event": "checkpoint", "step": int(found[1]), "seconds": _float(found[2])}
    if found := _START.match(body):
        return {"event": "start", "world_size": int(found[1])}
    if found := _RESUME.match(body):
        return {"event": "resume", "step": int(found[1])}
    if found := _END.match(body):
        return {"event": found[1], "steps": int(found[2])}
    kind = body.partition(":")[0]
    return {"event": kind} if kind in _MESSAGES else None


def _pairs(text: str) -> list[tuple[str, float]]:
    """Return the names and numbers in a list like `loss 0.31, accuracy 0.9`."""
    split = (part.rpartition(" ") for part in text.split(", "))
    numbers = ((name, _float(value)) for name, _, value in split)
    return [(name, value) for name, value in numbers if value is not None]


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
