"""Find pods that another controller keeps with a finalizer, and name their successors.

Kueue keeps each ended pod of a group until its successor exists, so the successor needs another
name. The name contains the next free generation. It follows from the pods that exist, because the
controller lists the pods of a job before it creates one: a restarted operator finds the pod that
its predecessor created, and creates no second one.
"""

from datetime import timedelta

from ddp_operator.reconcile.pod_view import PodView
from ddp_operator.reconcile.world import World

MOST_HELD = 4
"""Maximum number of held pods of one node. A controller that never removes its finalizers cannot
make the operator create pods without end."""
_NORMAL = timedelta(seconds=10)
"""Time for which a controller may keep its finalizer before the status names the pod."""


def is_occupied(world: World, index: int) -> bool:
    """Return whether a node must not get a new pod yet.

    A container of one of its pods may still run after the deletions of the plan, or too many of its
    pods are held.
    """
    pods, current = world.pods_of(index), world.pod(index)
    if sum(bool(pod.finalizers) for pod in pods) >= MOST_HELD:
        return True
    return any(_may_run(pod, is_deleted=pod is current) for pod in pods)


def next_generation(world: World, index: int) -> int:
    """Return the generation of a node's next pod: 1, unless finalizers keep earlier pods."""
    held = [pod.generation for pod in world.pods_of(index) if pod.finalizers]
    return 1 + max(held, default=0)


def held_sentence(world: World) -> str | None:
    """Return a message about the controller that blocks a pod's successor, or None."""
    for pod in world.pods:
        waited = world.deleting_for.get(pod.uid, timedelta(0)) - pod.grace
        is_wanted = 0 <= pod.index < world.job.pods and pod is world.pod(pod.index)
        if not is_wanted or not pod.held or waited < _NORMAL or not is_occupied(world, pod.index):
            continue
        finalizers = ", ".join(pod.finalizers[:3])
        why = "" if pod.ended else ", because the kubelet has not reported its end"
        return (
            f"the deleted pod {pod.name} has no successor until its finalizers are removed:"
            f" {finalizers}{why}"
        )
    return None


def _may_run(pod: PodView, *, is_deleted: bool) -> bool:
    """Return whether a container of a pod may still run.

    Args:
        pod: The pod.
        is_deleted: Whether the plan deletes the pod without a grace period.
    """
    if pod.lingers:
        return True
    if pod.finalizers:
        return not pod.ended and not pod.never_runs
    return not is_deleted and not pod.terminal
