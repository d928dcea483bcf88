"""Compute the training progress in the job's status from the first member's agent status.

Global rank 0 reports the progress of the whole run, so one agent is enough. The operator writes a
new step only once per `World.progress_interval`, which grows with the number of jobs, because each
write costs the API server a transaction. The first checkpoint of an attempt and everything at its
end are written at once, because decisions depend on them.
"""

from datetime import UTC, datetime
from typing import Any

from ddp_operator.api.status import (
    CheckpointStatus,
    DDPJobStatus,
    ProgressStatus,
    StragglerStatus,
)
from ddp_operator.reconcile.escalation import has_saved
from ddp_operator.reconcile.world import World
from ddp_wire.messages import (
    METRIC_NAME_CHARACTERS,
    METRICS,
    AgentStatus,
    Progress,
    Straggler,
)

_LONGEST_INTERVAL = 31_536_000
"""Maximum interval of checkpoints in seconds, because an agent may report any number."""
_LARGEST_RATE = 1e15
"""Samples per second at which a rate is invalid, infinity and NaN included."""


def with_progress(world: World, status: DDPJobStatus, *, at_the_end: bool = False) -> DDPJobStatus:
    """Return the status with the newest progress, checkpoint and resumed step.

    While an attempt runs, a new value may wait for `World.progress_interval`. `at_the_end` applies
    every value, so that a checkpoint committed just before the end of the attempt counts as
    progress.
    """
    agent = _rank_zero_status(world, status.attempt)
    if agent is None:
        return status
    update: dict[str, Any] = {}
    if status.resumed_from_step is None:  # Reported once: an attempt resumes once.
        resumed = next((b.resumed_from for b in agent.ranks if b.rank == 0), None)
        update["resumed_from_step"] = resumed
    if agent.checkpoint is not None:
        update["last_checkpoint"] = CheckpointStatus(
            step=agent.checkpoint.step,
            path=agent.checkpoint.path[:1024],
            time=datetime.fromtimestamp(agent.checkpoint.at, UTC).replace(microsecond=0),
            interval_seconds=_whole(agent.checkpoint.interval_seconds),
        )
    if agent.progress is not None:
        update["progress"] = render(agent.progress, world.now)
        update["straggler"] = _straggler(world, agent.progress.straggler)
    changed = status.model_copy(update=update)
    if at_the_end:
        return changed
    return changed if _worth_writing(world, status, changed) else status


def seconds_until_due(world: World, status: DDPJobStatus) -> float | None:
    """Return the seconds until a delayed step may be written, or None if no step waits.

    Agents report about once per interval. Otherwise a status that arrives slightly early would wait
    for the next one, and the shown step would be two intervals old.
    """
    agent, shown = _rank_zero_status(world, status.attempt), status.progress
    if agent is None or agent.progress is None or shown is None or shown.time is None:
        return None
    if agent.progress.step == shown.step:
        return None
    return max(0.0, (world.progress_interval - abs(world.now - shown.time)).total_seconds())


def render(progress: Progress, now: datetime) -> ProgressStatus:
    """Return the progress for the status. Floats become decimal strings or rounded integers."""
    rate = progress.samples_per_second
    return ProgressStatus(
        summary=_summary(progress),
        step=progress.step,
        total_steps=progress.total_steps,
        epoch=progress.epoch,
        loss=None if progress.loss is None else f"{progress.loss:.4g}",
        samples_per_second=round(rate) if rate is not None and abs(rate) < _LARGEST_RATE else None,
        eta_seconds=progress.eta_seconds,
        metrics=_rendered(progress.metrics) or None,
        time=now.replace(microsecond=0),
    )


def _straggler(world: World, found: Straggler | None) -> StragglerStatus | None:
    """Return the slow rank with its pod, or None if the job has no such rank."""
    if found is None:
        return None
    pod = world.pod_of(found.rank)
    if pod is None:
        return None
    return StragglerStatus(
        rank=found.rank,
        pod=pod.name,
        node=pod.node,
        ratio=f"{found.ratio:.1f}",
        part=found.part,
    )


def _whole(seconds: float | None) -> int | None:
    return None if seconds is None else round(min(seconds, _LONGEST_INTERVAL))


def _rendered(metrics: dict[str, float]) -> dict[str, str]:
    first = list(metrics.items())[:METRICS]
    return {name[:METRIC_NAME_CHARACTERS]: f"{value:.4g}" for name, value in first}


def _summary(progress: Progress) -> str:
    if not progress.total_steps:
        return str(progress.step)
    percent = 100 * progress.step // progress.total_steps
    return f"{progress.step}/{progress.total_steps} ({percent}%)"


def _rank_zero_status(world: World, attempt: int) -> AgentStatus | None:
    """Return the status of the agent that runs global rank 0 in an attempt."""
    pod = world.first_pod
    agent = world.agent_status(pod) if pod is not None else None
    return agent if agent is not None and agent.attempt == attempt else None


def _worth_writing(world: World, old: DDPJobStatus, new: DDPJobStatus) -> bool:
    """Return whether a change is important enough to be written at once.

    The first checkpoint of an attempt decides whether the attempt counts as stalled, and must not
    be lost together with the agent's pod.
    """
    if new.resumed_from_step != old.resumed_from_step or has_saved(new) != has_saved(old):
        return True
    if (new.straggler is None) != (old.straggler is None):
        return True
    shown = old.progress.time if old.progress else None
    # abs() handles a shown time in the future, after the clock was set back.
    return _content(old) != _content(new) and (
        shown is None or abs(world.now - shown) >= world.progress_interval
    )


def _content(status: DDPJobStatus) -> dict[str, Any]:
    return status.model_dump(exclude={"progress": {"time"}})
