"""Create, replace and delete children until they match the current attempt.

Each reconcile compares the children with the status and returns the actions that are still missing,
so an interrupted plan needs no undo. Each node of the job has one pod:

- A living pod of an earlier attempt gets the new attempt number, and its agent restarts the ranks
  in place. The pod is deleted instead if its spec has changed or the escalation requires a new pod.
- A pod that ended in an earlier attempt is deleted. Its successor is created at once, unless a
  container may still run in the old pod. If a finalizer keeps the old pod, the successor has
  another name (`held_pods`).
- A pod of a member that ended in the current attempt stays, because it holds a result. An ended pod
  of any other node is replaced.

Two pods of one node never run at the same time, even under different names, because both would join
the rendezvous as this node.
"""

from dataclasses import dataclass, replace
from datetime import timedelta

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import ConditionType, DDPJobStatus, PodsStatus
from ddp_operator.builders.affinity import valid_strikes
from ddp_operator.builders.defaults import Defaults
from ddp_operator.builders.env import checkpoint_directory
from ddp_operator.builders.gangs.schedulers import new_gang, recorded_gang
from ddp_operator.builders.kinds import kinds_in_use
from ddp_operator.builders.names import code_hash
from ddp_operator.reconcile import gangs, held_pods, outside_gang
from ddp_operator.reconcile.abandoned import is_abandoned
from ddp_operator.reconcile.claims import change_claim
from ddp_operator.reconcile.escalation import must_recreate
from ddp_operator.reconcile.gpu_products import misplaced_pods
from ddp_operator.reconcile.images import pinned_image
from ddp_operator.reconcile.plan import (
    Action,
    CreatePod,
    DeletePod,
    EndPod,
    EnsureChild,
    SetAttempt,
)
from ddp_operator.reconcile.pod_view import PodView
from ddp_operator.reconcile.world import World
from ddp_wire.contract import ATTEMPT_STOP

OTHER_PODS_WAIT = timedelta(seconds=5)
"""Maximum time for which pods of other nodes wait until the members of a new attempt train."""
LINGERING_GRACE_SECONDS = 1
"""Grace period in seconds of a pod whose worker has ended while a sidecar still runs."""


def fresh_pods(job: DDPJob, defaults: Defaults, first_port: int | None = None) -> PodsStatus:
    """Return the settings that all pods share when they are created together.

    Args:
        job: The job.
        defaults: The operator's defaults for spec fields that a job leaves out.
        first_port: First port of the job's block, if it uses the network of the Kubernetes nodes.
    """
    spec = job.spec
    policy = spec.image_pull_policy
    return PodsStatus(
        nodes=spec.nodes,
        image=spec.image or defaults.image,
        image_pull_policy=policy.value if policy else defaults.image_pull_policy,
        code_hash=code_hash(job),
        checkpoint_directory=checkpoint_directory(job),
        gang=new_gang(job, defaults.gangs),
        first_port=first_port if spec.uses_host_network else None,
    )


def ensure_attempt(world: World, status: DDPJobStatus, defaults: Defaults) -> list[Action]:
    """Return actions that give each node one pod of this attempt, reused in place if possible."""
    waits = world.creation_waits if status.attempt == world.job.status.attempt else {}
    strikes = valid_strikes(status.strikes, world.now)
    status = status.model_copy(update={"strikes": strikes})
    job = world.job.model_copy(update={"status": status})
    world = replace(world, job=job)
    shared = _shared_defaults(world, defaults)
    actions = [*ensure_other_children(world, defaults), *gangs.ensure_group(world, defaults)]
    for init_pod in world.init_pods:  # An edit may have removed its step.
        actions += [] if init_pod.terminal else delete_init_pod(init_pod)
    misplaced = misplaced_pods(world)
    in_the_way = outside_gang.pods_in_the_way(world)
    indices = range(job.pods)
    for index in indices:
        pod = world.pod(index)
        if pod is not None and not _is_replaceable(world, pod):
            remedy = _Remedy(
                remove=pod.name in in_the_way,
                recreate=must_recreate(status, pod.name),
                elsewhere=pod.name in misplaced,
            )
            actions += _ensure_living(world, pod, remedy)
            continue
        if pod is None and index in world.succeeded:
            continue  # Its result is recorded, so its pod may be gone.
        if pod is not None and not pod.held:
            actions.append(_delete(pod, by_force=not pod.lingers))
        may_create = index not in waits and not _may_wait(world, index)
        if may_create and not held_pods.is_occupied(world, index):
            number = held_pods.next_generation(world, index)
            secret = world.job_secret
            actions.append(CreatePod(job, index, status.attempt, shared, secret, number))
    surplus = [p for p in world.pods if p is not world.pod(p.index) or p.index not in indices]
    actions += [_delete(pod) for pod in surplus if _is_deletable(pod)]
    gang = recorded_gang(job)
    return gangs.with_ended_groups(world, actions, keep=None if gang is None else gang.group)


def _may_wait(world: World, index: int) -> bool:
    """Return whether the pod of a node is created later: a gang and the members come first.

    While the members recover from a fault, a new pod would only take CPU time and requests.
    """
    if outside_gang.must_wait(world, index):
        return True
    status, start = world.job.status, world.job.status.attempt_start_time
    if index in world.members or status.attempt == 1 or start is None:
        return False
    joined = status.is_true(ConditionType.RENDEZVOUSED)
    return not joined and timedelta(0) <= world.now - start < OTHER_PODS_WAIT


def ensure_other_children(world: World, defaults: Defaults) -> list[Action]:
    """Return actions that create or restore all children except pods."""
    actions: list[Action] = []
    for kind in kinds_in_use(defaults):
        if kind.build is None:
            continue
        wanted = kind.build(world.job, defaults)
        if wanted is None:
            continue
        if not any(kind.is_intact(one, wanted) for one in world.children.get(kind.name, ())):
            actions.append(EnsureChild(wanted))
    return [*actions, *change_claim(world)]


def _shared_defaults(world: World, defaults: Defaults) -> Defaults:
    """Return the image of the attempt's other pods, so that an upgrade never mixes two images.

    If the status records no image, an older operator created these pods.
    """
    pods, status = world.job.status.pods, world.job.status
    if pods is not None:
        pinned = pinned_image(world.job, pods.image, world.pods)
        policy = pods.image_pull_policy
        return replace(defaults, image=pods.image, pinned_image=pinned, image_pull_policy=policy)
    peers = (p.image for p in world.pods if p.spec_hash == status.attempt_spec_hash)
    image = next((image for image in peers if image), defaults.image)
    return replace(defaults, image=image)


def _is_replaceable(world: World, pod: PodView) -> bool:
    """Return whether a new pod may replace this pod at once.

    A pod that ended in this attempt is a result and stays. A pod of an earlier attempt only
    occupies the name. A deleted pod that failed before the start of the attempt is no fault and
    normally disappears, but a finalizer may keep it until its successor exists.
    """
    if pod.terminal:
        is_kept = pod.held and pod.phase == "Failed"
        return is_kept or pod.index not in world.members or not world.ended_here(pod)
    return pod.never_runs or is_abandoned(world, pod)


@dataclass(frozen=True, slots=True)
class _Remedy:
    """What a living pod of an attempt needs."""

    remove: bool
    """Whether the pod must be deleted in any case."""
    recreate: bool
    """Whether the escalation requires a new pod for the attempt."""
    elsewhere: bool
    """Whether the pod is on another GPU product than the rest of the job."""


def _ensure_living(world: World, pod: PodView, remedy: _Remedy) -> list[Action]:
    """Return the actions for a pod that runs, or that is about to end by itself.

    A deleted pod keeps its name until it is gone, so a later reconcile creates its successor.

    Args:
        world: The observed state of the job.
        pod: The pod.
        remedy: What the pod needs.
    """
    order = world.job.order
    if pod.terminal or pod.deleting:
        return []
    if pod.spec_hash != world.job.spec_hash or pod.job_secret != world.job_secret:
        return [_delete(pod)]  # With another secret it could never meet its peers.
    if remedy.remove or (pod.gang_group and world.is_of_former_gang(pod)):
        return [_delete(pod)]
    waits = pod.index not in world.members
    unfit = remedy.elsewhere and (waits or not world.has_started)
    if unfit or (waits and world.why_going(pod)):
        return [_delete(pod)]  # The scheduler finds another Kubernetes node for its successor.
    if pod.attempt == str(order.attempt):
        return []
    if remedy.recreate:
        return [_delete(pod)]
    # A request to an agent that does not answer would only delay the annotation.
    address = pod.ip if pod.uid in world.agent_statuses else None
    return [SetAttempt(pod.name, pod.uid, order.to_text(), address, pod.secret, pod.agent_port)]


def delete_pods(world: World, *, with_init: bool = True) -> list[Action]:
    """Return actions that delete every pod. Living pods get their grace period.

    Args:
        world: The observed state of a job.
        with_init: Whether to delete the pods of init steps, too.
    """
    pods = (*world.pods, *world.init_pods) if with_init else world.pods
    deletions = [_delete(pod) for pod in pods if _is_deletable(pod)]
    return gangs.with_ended_groups(world, deletions)


def delete_init_pod(pod: PodView, *, by_force: bool = False) -> list[Action]:
    """Return the action that deletes the pod of an init step, if it would change anything."""
    return [_delete(pod, by_force=by_force)] if by_force or _is_deletable(pod) else []


def _is_deletable(pod: PodView) -> bool:
    """Return whether deleting the pod would still change anything."""
    return not pod.held and (pod.terminal or not pod.deleting)


def end_pods(world: World) -> list[Action]:
    """Return actions that end every pod of a finished job but keep it for its log.

    Ranks may still run: after a failed attempt, or after their work until they exit.
    """
    actions: list[Action] = []
    for pod in world.pods:
        if pod.deleting:
            continue
        if pod.lingers:
            actions.append(EndPod(pod.name, pod.uid))
        elif pod.phase == "Pending":
            # It has no log and reads no order, but it may hold a GPU or make a cluster grow.
            actions.append(_delete(pod))
        elif not pod.terminal and pod.attempt != ATTEMPT_STOP:
            actions.append(SetAttempt(pod.name, pod.uid, ATTEMPT_STOP))
    for pod in world.init_pods:
        actions += [] if pod.terminal else delete_init_pod(pod)
    return gangs.with_ended_groups(world, actions)


def _delete(pod: PodView, *, by_force: bool = False) -> DeletePod:
    if pod.lingers:
        return DeletePod(pod.name, pod.uid, LINGERING_GRACE_SECONDS)
    return DeletePod(pod.name, pod.uid, 0 if pod.terminal or by_force else None)
