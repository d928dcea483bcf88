"""Find pods whose end the kubelet will never report."""

from datetime import timedelta

from ddp_operator.reconcile.pod_view import PodView
from ddp_operator.reconcile.world import World
from ddp_wire.messages import AgentPhase

UNREACHABLE_REASON = "DeletionByTaintManager"
"""Disruption reason of pods that Kubernetes deletes because of a taint on their node. Kubernetes
sets this taint on unreachable nodes. Administrators may also set it on a node that works."""
UNREACHABLE_GRACE = timedelta(seconds=1)
"""Wait before a silent pod on an unreachable Kubernetes node is replaced."""
OVERDUE_GRACE = timedelta(seconds=15)
"""Wait after the end of a pod's grace period. Then the pod is replaced, because its kubelet must be
gone."""

_ENDED = frozenset({AgentPhase.FAILED, AgentPhase.PREEMPTED})


def is_abandoned(world: World, pod: PodView) -> bool:
    """Return whether a pod that is being deleted must be replaced by force.

    Its container may still run. So the new pod always belongs to a later attempt. The ranks of the
    old pod can neither join that attempt nor commit a checkpoint, because of the fence.

    The waits begin when this operator first sees the deletion, because its clock and that of the
    API server may differ.
    """
    waited = world.deleting_for.get(pod.uid)
    if not pod.deleting or waited is None:
        return False
    if waited > pod.grace + OVERDUE_GRACE:
        return True
    silent = pod.uid in world.silent and waited >= UNREACHABLE_GRACE
    return silent and pod.disruption == UNREACHABLE_REASON


def is_unreachable(world: World, pod: PodView) -> bool:
    """Return whether Kubernetes removes a pod because its Kubernetes node is lost.

    Kubernetes marks the pods of an unreachable node as not ready before it deletes them. So a ready
    pod proves that the node works. An agent status that reports the end of its ranks proves it too.
    Other agent statuses may be older than the loss.
    """
    agent = world.agent_status(pod)
    ended = agent is not None and agent.phase in _ENDED
    works = pod.ready or ended or pod.termination is not None
    return pod.disruption == UNREACHABLE_REASON and not works
