"""Decide when the pods outside a gang may exist: spares, and further nodes of an elastic job.

They are placed for themselves. If they got Kubernetes nodes before the gang, they could take the
room that the gang needs, and the job would wait for ever. So the gang comes first:

- A pod outside the gang is created only while all pods of the gang have a Kubernetes node.
- If the gang loses its place and the attempt cannot start with the pods that have a Kubernetes
  node, the pods outside the gang are deleted.
"""

from datetime import timedelta

from ddp_operator.builders.gangs.schedulers import in_gang, recorded_gang
from ddp_operator.reconcile import elastic
from ddp_operator.reconcile.world import World

ROOM_WAIT = timedelta(seconds=30)
"""Time for which an attempt waits for its gang before the pods outside the gang are deleted. A
single lost pod of the gang is normally placed within seconds."""


def must_wait(world: World, index: int) -> bool:
    """Return whether the pod of a node must not be created before the gang is placed."""
    gang = recorded_gang(world.job)
    return gang is not None and not in_gang(world.job, index) and not world.gang_is_placed


def pods_in_the_way(world: World) -> frozenset[str]:
    """Return the names of the pods that must be deleted because the gang needs their room."""
    start, limits = world.job.status.attempt_start_time, elastic.limits_of(world.job)
    if start is None or limits is None or world.gang_is_placed or world.has_started:
        return frozenset()
    if world.now - start < ROOM_WAIT or sum(p.has_place for p in world.pods) >= limits.least:
        return frozenset()
    return frozenset(pod.name for pod in world.pods if not in_gang(world.job, pod.index))


def expected(world: World) -> range:
    """Return the nodes whose pods should exist now."""
    gang = recorded_gang(world.job)
    if gang is None or world.gang_is_placed:
        return range(world.job.pods)
    return range(min(gang.size, world.job.pods))
