"""Create, replace and delete children until they match the current attempt."""

from datetime import timedelta

from ddp_operator.api.status import DDPJobStatus
from ddp_operator.builders import names
from ddp_operator.builders.pod import Defaults, build_pod
from ddp_operator.builders.service import build_service
from ddp_operator.reconcile.escalation import pods_to_replace
from ddp_operator.reconcile.plan import Action, CreatePod, CreateService, DeletePod, SetAttempt
from ddp_operator.reconcile.world import PodView, World, ended_in
from ddp_wire.contract import ATTEMPT_STOP

UNREACHABLE_REASON = "DeletionByTaintManager"
"""Disruption reason of pods that Kubernetes deletes because their node is unreachable."""
UNREACHABLE_GRACE = timedelta(seconds=1)
"""Wait before a silent pod of an unreachable Kubernetes node is replaced."""
OVERDUE_GRACE = timedelta(seconds=15)
"""Wait after a pod's deletion deadline before it is replaced in any case: its kubelet is gone."""


def ensure_attempt(world: World, status: DDPJobStatus, defaults: Defaults) -> list[Action]:
    """Return actions that give each node one pod of this attempt, reused in place if possible."""
    job = world.job.model_copy(update={"status": status})
    actions: list[Action] = []
    if not world.service_exists:
        actions.append(CreateService(build_service(job)))
    replaced = pods_to_replace(job, status)
    for index in range(job.spec.nodes):
        pod, attempt = world.pod(index), status.attempt
        create = CreatePod(build_pod(job, index, attempt, defaults))
        if pod is None:
            actions.append(create)
        elif pod.deleting and _is_abandoned(world, pod):
            # Its ranks are harmless: they cannot join the rendezvous of a later attempt, and the
            # fence of the checkpoint directory refuses commits of an earlier one.
            actions += [DeletePod(pod.name, pod.uid, 0), create]
        elif pod.terminal:
            # A pod that ended in this attempt is a result and stays. A pod of an earlier attempt
            # only occupies the name.
            actions += [] if ended_in(pod, status) else [_delete(pod), create]
        else:
            actions += _ensure_living(
                pod,
                job.spec_hash,
                attempt,
                replace=pod.name in replaced,
                reachable=pod.uid in world.reports,
            )
    wanted = {names.pod_name(job, index) for index in range(job.spec.nodes)}
    surplus = [pod for pod in world.pods if pod.name not in wanted]
    return actions + [_delete(pod) for pod in surplus if pod.terminal or not pod.deleting]


def _ensure_living(
    pod: PodView, spec_hash: str, attempt: int, *, replace: bool, reachable: bool
) -> list[Action]:
    """Return the actions for a living pod.

    A deleted pod keeps its name until it is gone, so a later reconcile creates its successor.
    """
    if pod.deleting:
        return []
    if pod.spec_hash != spec_hash:
        return [_delete(pod)]
    if pod.attempt == str(attempt):
        return []
    if replace:
        return [_delete(pod)]
    return [SetAttempt(pod.name, pod.uid, str(attempt), pod.ip if reachable else None)]


def _is_abandoned(world: World, pod: PodView) -> bool:
    """Return whether no kubelet will ever report the end of a pod that is being deleted."""
    if pod.deletion_deadline is None or pod.deletion_requested is None:
        return False
    if world.now - pod.deletion_deadline > OVERDUE_GRACE:
        return True
    waited = world.now - pod.deletion_requested
    silent = pod.uid in world.silent and waited >= UNREACHABLE_GRACE
    return silent and pod.disruption == UNREACHABLE_REASON


def delete_pods(world: World) -> list[Action]:
    """Return actions that delete every pod. Living pods get their grace period."""
    return [_delete(pod) for pod in world.pods if pod.terminal or not pod.deleting]


def stop_pods(world: World) -> list[Action]:
    """Return actions that stop every pod but keep it, so that its log stays readable."""
    return [
        SetAttempt(pod.name, pod.uid, ATTEMPT_STOP)
        for pod in world.pods
        if not pod.terminal and not pod.deleting and pod.attempt != ATTEMPT_STOP
    ]


def _delete(pod: PodView) -> DeletePod:
    return DeletePod(pod.name, pod.uid, 0 if pod.terminal else None)
