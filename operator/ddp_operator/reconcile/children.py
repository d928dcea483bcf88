"""What must be done so that the children fit the current attempt."""

from datetime import timedelta

from ddp_operator.api.status import DDPJobStatus
from ddp_operator.builders import names
from ddp_operator.builders.pod import Defaults, build_pod
from ddp_operator.builders.service import build_service
from ddp_operator.reconcile.ladder import pods_to_replace
from ddp_operator.reconcile.plan import Action, CreatePod, CreateService, DeletePod, SetAttempt
from ddp_operator.reconcile.world import PodView, World, ended_in
from ddp_wire.contract import ATTEMPT_STOP

UNREACHABLE = "DeletionByTaintManager"
"""Why Kubernetes deletes the pods of a node that has stopped talking to it."""
SILENCE = timedelta(seconds=1)
"""After this a pod of such a node, whose agent does not answer either, is replaced."""
OVERDUE = timedelta(seconds=15)
"""So long after the end of its grace period any pod is: its kubelet is out of reach."""


def ensure_attempt(world: World, status: DDPJobStatus, defaults: Defaults) -> list[Action]:
    """Actions that give every node a pod of the attempt of a status, told in place where it may."""
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
            # No rank of it can do harm: it is in no rendezvous of a later attempt, and the
            # checkpoint directory refuses a writer of an earlier one.
            actions += [DeletePod(pod.name, pod.uid, 0), create]
        elif pod.terminal:
            # Of this attempt it is an outcome, and stays. Of an earlier one it only occupies the
            # name.
            actions += [] if ended_in(pod, status) else [_delete(pod), create]
        else:
            actions += _ensure_living(pod, job.spec_hash, attempt, replace=pod.name in replaced)
    wanted = {names.pod_name(job, index) for index in range(job.spec.nodes)}
    beyond = [pod for pod in world.pods if pod.name not in wanted]
    return actions + [_delete(pod) for pod in beyond if pod.terminal or not pod.deleting]


def _ensure_living(pod: PodView, spec_hash: str, attempt: int, *, replace: bool) -> list[Action]:
    """A pod that is deleted keeps its name until it is gone; then the next look creates it."""
    if pod.deleting:
        return []
    if pod.spec_hash != spec_hash:
        return [_delete(pod)]
    if pod.attempt == str(attempt):
        return []
    if replace:
        return [_delete(pod)]
    return [SetAttempt(pod.name, pod.uid, str(attempt), pod.ip)]


def _is_abandoned(world: World, pod: PodView) -> bool:
    """Whether a pod on its way out is on a node from which nobody will say that it has ended."""
    if pod.deletion_due is None or pod.deletion_asked is None:
        return False
    if world.now - pod.deletion_due > OVERDUE:
        return True
    silent = pod.uid not in world.reports and world.now - pod.deletion_asked >= SILENCE
    return silent and pod.disruption == UNREACHABLE


def delete_pods(world: World) -> list[Action]:
    """Actions that delete every pod: the living gracefully."""
    return [_delete(pod) for pod in world.pods if pod.terminal or not pod.deleting]


def stop_pods(world: World) -> list[Action]:
    """Actions that end every pod but keep it, so that its log can be read."""
    return [
        SetAttempt(pod.name, pod.uid, ATTEMPT_STOP)
        for pod in world.pods
        if not pod.terminal and not pod.deleting and pod.attempt != ATTEMPT_STOP
    ]


def _delete(pod: PodView) -> DeletePod:
    return DeletePod(pod.name, pod.uid, 0 if pod.terminal else None)
