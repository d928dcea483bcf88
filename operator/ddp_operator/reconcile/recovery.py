"""The trace of a recovery: where the time between a fault and the next update went."""

from collections.abc import Callable, Sequence
from datetime import datetime

from ddp_operator.api.status import DDPJobStatus, FailureStatus, RecoveryStatus
from ddp_operator.reconcile.world import World
from ddp_wire.contract import Timeline

_CHARACTERS = 256
_PARTS: tuple[tuple[str, str, Callable[[Timeline], float | None]], ...] = (
    ("told_milliseconds", "told", lambda t: t.ordered),
    ("torn_down_milliseconds", "torn down", lambda t: t.cleared or t.ordered),
    ("forked_milliseconds", "forked", lambda t: t.launched),
    ("rendezvous_milliseconds", "rendezvous", lambda t: t.spawned),
    ("process_group_milliseconds", "process group", lambda t: t.joined),
    ("first_step_milliseconds", "first step", lambda t: t.stepped),
)
"""Field of the status, name for people, and when a node was there."""


def opened(status: DDPJobStatus, failure: FailureStatus, now: datetime) -> DDPJobStatus:
    """The status, which begins the trace of the recovery from a failure."""
    recovery = RecoveryStatus(
        attempt=status.attempt + 1,
        fault=failure.message[:_CHARACTERS],
        time=failure.time,
        decided_milliseconds=_milliseconds((now - failure.time).total_seconds()),
    )
    return status.model_copy(update={"last_recovery": recovery})


def traced(world: World, status: DDPJobStatus) -> DDPJobStatus:
    """The status, whose open trace is completed once every node has done its first update."""
    recovery = status.last_recovery
    if recovery is None or recovery.attempt != status.attempt or recovery.complete:
        return status
    timelines = _timelines(world, status.attempt)
    if len(timelines) < world.job.spec.nodes or any(t.stepped is None for t in timelines):
        return status
    return status.model_copy(update={"last_recovery": _completed(recovery, timelines)})


def _timelines(world: World, attempt: int) -> list[Timeline]:
    words = (world.report(pod) for pod in world.pods)
    return [w.timeline for w in words if w is not None and w.timeline and w.attempt == attempt]


def _completed(recovery: RecoveryStatus, timelines: Sequence[Timeline]) -> RecoveryStatus:
    """Each part is over when the last node is through with it and with all before it."""
    fault = recovery.time.timestamp()
    noticed = [t.noticed for t in timelines if t.noticed is not None]
    times: dict[str, int] = {}
    if noticed:
        times["noticed_milliseconds"] = _milliseconds(min(noticed) - fault)
    reached = recovery.decided_milliseconds
    for field, _, when in _PARTS:
        moments = [moment for t in timelines if (moment := when(t)) is not None]
        reached = max(reached, *(_milliseconds(moment - fault) for moment in moments), 0)
        times[field] = reached
    done = recovery.model_copy(update=times)
    return done.model_copy(update={"summary": _summary(done)})


def _summary(recovery: RecoveryStatus) -> str:
    parts = [("noticed", recovery.noticed_milliseconds), ("decided", recovery.decided_milliseconds)]
    parts += [(name, getattr(recovery, field)) for field, name, _ in _PARTS]
    told = [f"{name} {value / 1000:.2f}" for name, value in parts if value is not None]
    return f"{(recovery.first_step_milliseconds or 0) / 1000:.1f} s: " + ", ".join(told)


def _milliseconds(seconds: float) -> int:
    """Whole milliseconds; clocks that differ do not make time run backwards."""
    return max(0, round(1000 * seconds))
