"""Record each change of an elastic job's members, and its duration.

The duration is measured by the operator's clock. It lasts from the decision until the operator
knows that every rank of the new attempt has completed an update.
"""

from datetime import timedelta

from ddp_operator.api.members import ResizeStatus
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.reconcile.plan import Event, EventType
from ddp_operator.reconcile.world import World


def with_resize(
    world: World, status: DDPJobStatus, members: frozenset[int], why: str
) -> DDPJobStatus:
    """Return the status in which a change of the members, if any, is recorded.

    Args:
        world: The observed state of the job, with the members of the attempt that has ended.
        status: The job's status, still with the number of the ended attempt.
        members: Members of the next attempt.
        why: Reason for the change, as a clause that follows the word `because`.
    """
    if members == frozenset(world.members):
        return status
    last = ResizeStatus(
        attempt=status.attempt + 1,
        from_nodes=len(world.members),
        to_nodes=len(members),
        message=why[:1024],
        time=world.now,
        step=status.progress.step if status.progress is not None else None,
    )
    return status.model_copy(update={"resizes": status.resizes + 1, "last_resize": last})


def with_completed_resize(world: World, status: DDPJobStatus) -> DDPJobStatus:
    """Return the status with its last resize completed, once every rank has done an update."""
    last = status.last_resize
    if last is None or last.attempt != status.attempt or last.milliseconds is not None:
        return status
    pods = [world.pod(index) for index in world.members]
    agents = [world.agent_status(pod) for pod in pods if pod is not None]
    stepped = [a for a in agents if a is not None and a.attempt == status.attempt and a.timeline]
    if len(stepped) < len(pods) or any(a.timeline and a.timeline.stepped is None for a in stepped):
        return status
    done = last.model_copy(
        update={
            "milliseconds": max(0, (world.now - last.time) // timedelta(milliseconds=1)),
            "repeated_updates": _repeated(last, status),
        }
    )
    return status.model_copy(update={"last_resize": done})


def resize_events(world: World, status: DDPJobStatus) -> list[Event]:
    """Return the Event about a resize that has just been completed."""
    last, known = status.last_resize, world.job.status.last_resize
    if last is None or last.milliseconds is None or last == known:
        return []
    text = (
        f"attempt {last.attempt} trains on {last.to_nodes} instead of {last.from_nodes} nodes,"
        f" {last.milliseconds / 1000:.1f} s after the decision"
    )
    if last.repeated_updates is not None:
        text += f"; it repeats {last.repeated_updates} updates"
    return [Event(EventType.NORMAL, "Resized", text)]


def _repeated(last: ResizeStatus, status: DDPJobStatus) -> int | None:
    if last.step is None or status.resumed_from_step is None:
        return None
    return max(0, last.step - status.resumed_from_step)
