"""Describe in one sentence the operator's next action, or the event that it waits for.

The sentence changes only when the rest of the status does, so it never causes a status write of its
own.
"""

from collections.abc import Iterable
from datetime import timedelta

from ddp_operator.api.spec import CleanPodPolicy
from ddp_operator.api.status import ConditionType, DDPJobStatus
from ddp_operator.reconcile import backoff, elastic
from ddp_operator.reconcile.lifecycle import is_finished
from ddp_operator.reconcile.plan import CreatePod, DeletePod, Plan, SetAttempt
from ddp_operator.reconcile.world import World

_NAMED = 3
"""Maximum number of pods that a sentence names."""


def next_action(world: World, plan: Plan) -> str:
    """Return a message about a plan and about the operator's next action."""
    if is_finished(plan.status):
        return _after_finish(world)
    if plan.status.attempt_spec_hash is None:
        return _while_stopped(world, plan.status)
    if world.blocked is not None:
        return "the operator retries the request that the API server refused"
    status = plan.status
    start = status.attempt_start_time
    if start is not None and backoff.remaining(status, world.now) > timedelta(0):
        return f"the operator starts attempt {status.attempt} at {start:%H:%M:%S} UTC"
    if status.is_true(ConditionType.RENDEZVOUSED):
        return _while_training(world, status)
    recreated = _recreated(world, plan)
    if recreated and status.attempt == 1:
        return f"the operator creates {_listed(recreated)}"
    if recreated:
        return f"the operator recreates {_listed(recreated)}"
    if any(isinstance(action, SetAttempt) for action in plan.actions):
        return f"the operator restarts the ranks in place for attempt {status.attempt}"
    return f"the operator waits until all ranks of attempt {status.attempt} are training"


def _after_finish(world: World) -> str:
    spec = world.job.spec
    living = [pod.name for pod in world.pods if not pod.terminal]
    if spec.clean_pod_policy is CleanPodPolicy.ALL and world.pods:
        return f"the operator deletes {_listed(pod.name for pod in world.pods)}"
    if living:
        return f"the operator waits for {_listed(living)} to end"
    if spec.ttl_seconds_after_finished is not None:
        seconds = spec.ttl_seconds_after_finished
        return f"the operator deletes the job {seconds} s after its completion time"
    return "none: the job is finished"


def _while_stopped(world: World, status: DDPJobStatus) -> str:
    remaining = [pod.name for pod in world.pods]
    if remaining:
        return f"the operator waits for {_listed(remaining)} to end"
    if status.init is not None and status.init.step is not None and not world.job.spec.suspend:
        return f"the operator waits until init step {status.init.step} has completed"
    condition = "the spec is edited"
    if world.job.spec.suspend:
        condition = "spec.suspend is false"
    elif status.refused_spec_hash is None and world.checkpoint_owner is not None:
        condition = f"the DDPJob {world.checkpoint_owner} has ended"
    return f"none: the operator waits until {condition}"


def _while_training(world: World, status: DDPJobStatus) -> str:
    living = [pod for pod in world.pods if not pod.terminal]
    if 0 < len(living) < len(world.pods):
        return f"the operator waits for {_listed(pod.name for pod in living)} to end"
    unready = [pod.name for pod in living if not pod.ready]
    if (growth := elastic.next_growth(world)) is not None:
        return growth
    if unready and not status.is_true(ConditionType.PODS_READY):
        return f"the operator waits for {_listed(unready)} to become ready"
    if status.suspect is not None:
        return "none: the operator waits until an update ends, or a limit of spec.hang has passed"
    return "none: all ranks are training"


def _recreated(world: World, plan: Plan) -> list[str]:
    """Return the names of the pods that the plan deletes or creates, without surplus pods."""
    kept = range(world.job.pods)
    wanted = {pod.name for pod in world.pods if pod.index in kept}
    found = {pod.name for pod in world.pods if pod.deleting and not pod.terminal}
    found |= {action.name for action in plan.actions if isinstance(action, DeletePod)}
    created = {action.name for action in plan.actions if isinstance(action, CreatePod)}
    return sorted((found & wanted) | created)


def _listed(pods: Iterable[str]) -> str:
    named = sorted(pods)
    rest = len(named) - _NAMED
    more = f" and {rest} more" if rest > 0 else ""
    return ", ".join(named[:_NAMED]) + more
