"""Trace a recovery: split the time from a fault to the next update into phases.

The trace starts with the decision on the next attempt. Each agent reports when its node has
finished a phase, from the receipt of the order to the first update. A phase ends when the last node
has finished this phase and all earlier ones, so the phases add up to the whole time. The operator
writes the trace once, when every node has completed an update.
"""

from collections.abc import Callable, Sequence
from datetime import datetime

from ddp_operator.api.recovery import RecoveryStatus
from ddp_operator.api.status import DDPJobStatus, FailureStatus
from ddp_operator.reconcile.world import World
from ddp_wire.messages import Timeline

_CHARACTERS = 256
_PARTS: tuple[tuple[str, str, Callable[[Timeline], float | None]], ...] = (
    ("ordered_milliseconds", "ordered", lambda t: t.ordered),
    ("torn_down_milliseconds", "torn down", lambda t: t.cleared or t.ordered),
    ("forked_milliseconds", "forked", lambda t: t.launched),
    ("rendezvous_milliseconds", "rendezvous", lambda t: t.spawned),
    ("process_group_milliseconds", "process group", lambda t: t.joined),
    ("first_step_milliseconds", "first step", lambda t: t.stepped),
)
"""Phases: the field in the status, the name in the summary, and the function that returns a node's
end time."""


def start_trace(status: DDPJobStatus, failure: FailureStatus, now: datetime) -> DDPJobStatus:
    """Return the status with a new trace of the recovery from a failure."""
    recovery = RecoveryStatus(
        attempt=status.attempt + 1,
        fault=failure.message[:_CHARACTERS],
        time=failure.time,
        decided_milliseconds=_milliseconds((now - failure.time).total_seconds()),
    )
    return status.model_copy(update={"last_recovery": recovery})


def complete_trace(world: World, status: DDPJobStatus) -> DDPJobStatus:
    """Return the status with a complete trace once every node has done its first update."""
    recovery = status.last_recovery
    if recovery is None or recovery.attempt != status.attempt or recovery.complete:
        return status
    timelines = _timelines(world, status.attempt)
    if len(timelines) < len(world.members) or any(t.stepped is None for t in timelines):
        return status
    return status.model_copy(update={"last_recovery": _completed(recovery, timelines)})


def duration(recovery: RecoveryStatus) -> str:
    """Return the time from the fault to the first update of all ranks, as text for a message."""
    return f"{(recovery.first_step_milliseconds or 0) / 1000:.1f} s"


def _timelines(world: World, attempt: int) -> list[Timeline]:
    pods = (world.pod(index) for index in world.members)
    agents = (world.agent_status(pod) for pod in pods if pod is not None)
    return [r.timeline for r in agents if r is not None and r.timeline and r.attempt == attempt]


def _completed(recovery: RecoveryStatus, timelines: Sequence[Timeline]) -> RecoveryStatus:
    """Return the trace. A phase ends when the last node has finished it and all earlier phases."""
    fault = recovery.time.timestamp()
    noticed = [t.noticed for t in timelines if t.noticed is not None]
    times: dict[str, int] = {}
    if noticed:
        times["noticed_milliseconds"] = _milliseconds(min(noticed) - fault)
    reached = recovery.decided_milliseconds
    for field, _, end_of_part in _PARTS:
        ends = [end for t in timelines if (end := end_of_part(t)) is not None]
        reached = max(reached, *(_milliseconds(end - fault) for end in ends), 0)
        times[field] = reached
    done = recovery.model_copy(update=times)
    return done.model_copy(update={"summary": _summary(done)})


def _summary(recovery: RecoveryStatus) -> str:
    parts = [("noticed", recovery.noticed_milliseconds), ("decided", recovery.decided_milliseconds)]
    parts += [(name, getattr(recovery, field)) for field, name, _ in _PARTS]
    shown = [f"{name} {value / 1000:.2f}" for name, value in parts if value is not None]
    return f"{duration(recovery)}: " + ", ".join(shown)


def _milliseconds(seconds: float) -> int:
    """Return whole milliseconds, at least 0, because the clocks of two nodes may differ."""
    return max(0, round(1000 * seconds))
