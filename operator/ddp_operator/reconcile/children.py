"""What must be done so that the children fit the current attempt."""

from ddp_agent.contract import ATTEMPT_STOP
from ddp_operator.builders import names
from ddp_operator.builders.pod import Defaults, build_pod
from ddp_operator.builders.service import build_service
from ddp_operator.reconcile.plan import Action, CreatePod, CreateService, DeletePod, SetAttempt
from ddp_operator.reconcile.world import PodView, World


def ensure_attempt(world: World, attempt: int, defaults: Defaults) -> list[Action]:
    """Actions that give every node a pod of this attempt: told in place where it lives."""
    job = world.job
    actions: list[Action] = []
    if not world.service_exists:
        actions.append(CreateService(build_service(job)))
    for index in range(job.spec.nodes):
        actions += _ensure_pod(world, index, attempt, defaults)
    wanted = {names.pod_name(job, index) for index in range(job.spec.nodes)}
    beyond = [pod for pod in world.pods if pod.name not in wanted]
    return actions + [_delete(pod) for pod in beyond if pod.terminal or not pod.deleting]


def _ensure_pod(world: World, index: int, attempt: int, defaults: Defaults) -> list[Action]:
    name = names.pod_name(world.job, index)
    pod = next((p for p in world.pods if p.name == name), None)
    create = CreatePod(build_pod(world.job, index, attempt, defaults))
    if pod is None:
        return [create]
    if pod.terminal:
        # Of this attempt it is an outcome, and stays. Of an earlier one it only occupies the name.
        return [] if pod.ended_attempt == str(attempt) else [_delete(pod), create]
    if pod.deleting:
        return []  # Its name is taken until it is gone; then the next look creates it.
    if pod.spec_hash != world.job.spec_hash:
        return [_delete(pod)]
    if pod.attempt != str(attempt):
        return [SetAttempt(pod.name, pod.uid, str(attempt))]
    return []


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
