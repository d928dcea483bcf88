"""Pods that another controller keeps by a finalizer after their end."""

from datetime import timedelta

from ddp_operator.builders import names
from ddp_operator.reconcile.world import World

_NORMAL = timedelta(seconds=10)
"""Time that a controller may take to remove its finalizer before the status names it."""


def held_sentence(world: World) -> str | None:
    """Return who keeps the first pod whose successor cannot be created yet, or None."""
    wanted = {names.pod_name(world.job, index) for index in range(world.job.pods)}
    for pod in world.pods:
        waited = world.deleting_for.get(pod.uid, timedelta(0)) - pod.grace
        if not pod.held or pod.name not in wanted or waited < _NORMAL:
            continue
        finalizers = ", ".join(pod.finalizers[:3])
        return (
            f"the deleted pod {pod.name} keeps its name until its finalizers are removed:"
            f" {finalizers}"
        )
    return None
