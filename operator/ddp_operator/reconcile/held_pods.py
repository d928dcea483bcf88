"""Find ended pods that another controller keeps with a finalizer."""

from datetime import timedelta

from ddp_operator.builders import names
from ddp_operator.reconcile.world import World

_NORMAL = timedelta(seconds=10)
"""Time for which a controller may keep its finalizer before the status names the pod."""


def held_sentence(world: World) -> str | None:
    """Return a message about the controller that blocks a pod's successor, or None."""
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
