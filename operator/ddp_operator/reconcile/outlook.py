"""What the operator does next, or waits for, in a sentence for people.

It changes only with what the rest of the status tells too, so that it alone causes no write while
nothing happens.
"""

from collections.abc import Iterable

from ddp_operator.api.spec import CleanPodPolicy
from ddp_operator.api.status import ConditionType, DDPJobStatus
from ddp_operator.builders import names
from ddp_operator.reconcile.life import is_finished
from ddp_operator.reconcile.plan import CreatePod, DeletePod, Plan, SetAttempt
from ddp_operator.reconcile.world import World

_NAMED = 3
"""How many pods a sentence names."""


def next_action(world: World, plan: Plan) -> str:
    """The sentence about a plan and what follows it."""
    if is_finished(plan.status):
        return _of_finished(world, plan.status)
    if world.job.spec.suspend:
        names_left = [pod.name for pod in world.pods]
        waits = f"waits for {_some(names_left)} to end"
        return waits if names_left else "nothing: waits until spec.suspend is false"
    if world.blocked is not None:
        return "tries again what the API server refused"
    status = plan.status
    if status.is_true(ConditionType.RENDEZVOUSED):
        return _of_training(world, status)
    remade = _remade(world, plan)
    if remade and status.attempt == 1:
        return f"creates {_some(remade)}"
    if remade:
        return f"recreates {_some(remade)}"
    if any(isinstance(action, SetAttempt) for action in plan.actions):
        return f"attempt {status.attempt} starts in place"
    return f"waits until all ranks of attempt {status.attempt} train"


def _of_finished(world: World, status: DDPJobStatus) -> str:
    spec = world.job.spec
    succeeded = status.is_true(ConditionType.SUCCEEDED)
    living = [pod.name for pod in world.pods if not pod.terminal]
    if spec.clean_pod_policy is CleanPodPolicy.ALL and world.pods:
        return f"deletes {_some(pod.name for pod in world.pods)}"
    if living and not succeeded:
        return f"waits for {_some(living)} to end"
    if spec.ttl_seconds_after_finished is not None:
        return f"deletes the job {spec.ttl_seconds_after_finished} s after its end"
    return "nothing: finished"


def _of_training(world: World, status: DDPJobStatus) -> str:
    living = [pod for pod in world.pods if not pod.terminal]
    if 0 < len(living) < len(world.pods):
        return f"waits for {_some(pod.name for pod in living)} to end"
    silent = [pod.name for pod in living if not pod.ready]
    if silent and not status.is_true(ConditionType.PODS_READY):
        return f"waits for word of {_some(silent)}"
    return "nothing: all ranks train"


def _remade(world: World, plan: Plan) -> list[str]:
    """Pods that are on their way out, or back in."""
    wanted = {names.pod_name(world.job, index) for index in range(world.job.spec.nodes)}
    leaving = {pod.name for pod in world.pods if pod.deleting and not pod.terminal}
    for action in plan.actions:
        if isinstance(action, DeletePod):
            leaving.add(action.name)
        elif isinstance(action, CreatePod):
            leaving.add(action.manifest["metadata"]["name"])
    return sorted(leaving & wanted)


def _some(found: Iterable[str]) -> str:
    named = sorted(found)
    rest = len(named) - _NAMED
    more = f" and {rest} more" if rest > 0 else ""
    return ", ".join(named[:_NAMED]) + more
