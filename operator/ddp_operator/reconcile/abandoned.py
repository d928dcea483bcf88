"""Find pods whose end no kubelet will ever report."""

from datetime import timedelta

from ddp_operator.reconcile.world import PodView, World

UNREACHABLE_REASON = "DeletionByTaintManager"
"""Disruption reason of pods that Kubernetes deletes because their node is unreachable."""
UNREACHABLE_GRACE = timedelta(seconds=1)
"""Wait before a silent pod of an unreachable Kubernetes node is replaced."""
OVERDUE_GRACE = timedelta(seconds=15)
"""Wait after a pod's deletion deadline before it is replaced in any case: its kubelet is gone."""


def is_abandoned(world: World, pod: PodView) -> bool:
    """Return whether a pod that is being deleted must be replaced by force.

    Its container may still run. So its replacement always belongs to a later attempt: the ranks of
    the old one can neither join that attempt nor commit a checkpoint past its fence.
    """
    if not pod.deleting or pod.deletion_deadline is None or pod.deletion_requested is None:
        return False
    if world.now - pod.deletion_deadline > OVERDUE_GRACE:
        return True
    waited = world.now - pod.deletion_requested
    silent = pod.uid in world.silent and waited >= UNREACHABLE_GRACE
    return silent and pod.disruption == UNREACHABLE_REASON
