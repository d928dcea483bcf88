"""Create and delete the group objects of gangs, and report why a gang waits.

No other module of `reconcile` depends on the gang scheduler of a job. These rules hold for every
scheduler:

- The group object exists before its pods. `actions` runs an `EnsureChild` before any `CreatePod`.
- All pods that are created together get a new group. The status contains the group's name before
  any of these pods exists, so a restarted operator creates the same group.
- Each node of the job has one pod, and `children` creates its successor only once that pod has
  ended or its object is gone. So a group never has more living pods than places.
- The gang of an elastic job has the pods of the first `minNodes` nodes. The status contains its
  size, which never changes. The other pods and the spares are placed for themselves, and
  `outside_gang` decides when they may exist.
- Kueue builds its Workloads itself, and the operator only marks the pods. It ends a group by a mark
  on one of the pods, because Kueue otherwise waits for successors of all ended pods.
- A group without a living pod that is not the group of the current attempt is deleted. So are all
  groups of a job that is suspended or finished, because a group may hold a place in a queue.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ddp_operator.api.gang import GangStatus, GangType
from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import ConditionType, DDPJobStatus
from ddp_operator.builders.defaults import Defaults
from ddp_operator.builders.gangs import kueue
from ddp_operator.builders.gangs.schedulers import build_group, gang_type, recorded_gang
from ddp_operator.builders.gangs.versions import row_of
from ddp_operator.builders.kinds import GROUP_ROWS, KINDS
from ddp_operator.builders.pod import build_pod
from ddp_operator.reconcile.plan import (
    Action,
    DeleteChild,
    DeletePod,
    DeleteWorkload,
    EndGroup,
    EnsureChild,
    Event,
    EventType,
)
from ddp_operator.reconcile.pod_view import PodView
from ddp_operator.reconcile.world import World

_IGNORED = {"FieldDropped", "NotManaged", "NotServed"}
"""Reasons of the condition GangScheduled for pods that the scheduler places on their own."""
_WAITING = ("PodGroupScheduled", "PodGroupInitiallyScheduled", "Unschedulable")
"""Conditions of group objects whose messages state why the gang waits."""
_NOT_ADMITTED = "Pending"
"""Phase of a group that its queue has not yet admitted."""


@dataclass(frozen=True)
class GangReport:
    """Value, reason and message of the condition GangScheduled."""

    placed: bool
    reason: str
    message: str


def why_no_gang(job: DDPJob, defaults: Defaults) -> str | None:
    """Return the reason why new pods of a job cannot get its gang, or None if they can."""
    gangs, gang = defaults.gangs, recorded_gang(job)
    if job.status.pods is None or job.status.attempt_spec_hash != job.spec_hash:
        wanted = gang_type(job, gangs)
    else:
        wanted = gang.type if gang is not None else GangType.NONE
    why = gangs.why_not(wanted)
    source = "spec.gang.type" if job.spec.gang is not None else "gangs.default of the chart"
    if why is not None:
        return f"{source}: {wanted} is not available: {why}"
    given = job.spec.gang.queue if job.spec.gang is not None else None
    known = given or gangs.queue or (gang.queue if gang is not None else None)
    if wanted is not GangType.KUEUE or known:
        return None
    return "spec.gang.queue: must be set with Kueue, because gangs.queue of the chart is empty"


def ensure_group(world: World, defaults: Defaults) -> list[EnsureChild | DeleteChild]:
    """Return actions that create or restore the group object, and delete older groups."""
    gang = recorded_gang(world.job)
    if gang is None or not defaults.gangs.serves(gang.api_version):
        return list(_deletions(world, keep=None))
    if gang.type is GangType.KUEUE:
        return list(_deletions(world, keep=None))  # Kueue itself builds the Workload.
    found = _group_object(world, gang)
    deletions = _deletions(world, keep=gang.group)
    pod = build_pod(world.job, 0, world.job.status.attempt, defaults)
    wanted = build_group(world.job, gang, pod)
    if found is not None and KINDS[row_of(gang.api_version)].is_intact(found, wanted):
        return list(deletions)
    return [EnsureChild(wanted), *deletions]


def release_groups(world: World) -> list[DeleteChild]:
    """Return actions that delete the groups whose pods have all ended."""
    return _deletions(world, keep=None)


def with_ended_groups(
    world: World, actions: Iterable[Action], keep: str | None = None
) -> list[Action]:
    """Return the actions, with those that end groups of Kueue before any of their pods is deleted.

    Otherwise Kueue would keep the ended pods and the quota, and wait for successors. Kueue also
    keeps pods that were deleted behind their gate, because they never end. It releases them when
    their Workload is deleted.

    Args:
        world: The observed state of the job.
        actions: Actions that delete or end pods.
        keep: Name of the group that goes on, or None.
    """
    groups: dict[str, list[PodView]] = {}
    for pod in world.pods:
        if pod.queue_group and pod.queue_group != keep:
            groups.setdefault(pod.queue_group, []).append(pod)
    ends: list[Action] = []
    going_on: set[str] = set()
    for group, pods in groups.items():
        if any(pod.never_runs and pod.finalizers for pod in pods) and all(
            pod.ended or pod.never_runs for pod in pods
        ):
            ends.append(DeleteWorkload(group))
        marked = any(pod.group_ends for pod in pods)
        if not marked and any(pod.phase != "Succeeded" for pod in pods):
            first = min(pods, key=lambda pod: (pod.index, pod.name))
            ends.append(EndGroup(first.name, first.uid))
            going_on |= {pod.name for pod in pods}
    rest = [one for one in actions if not (isinstance(one, DeletePod) and one.name in going_on)]
    return [*ends, *rest]


def _deletions(world: World, keep: str | None) -> list[DeleteChild]:
    """Return actions that delete all groups without a living pod, except for one group."""
    living = {pod.gang_group for pod in world.pods if not pod.terminal}
    out = []
    for row in GROUP_ROWS:
        for group in world.children.get(row, ()):
            metadata = group["metadata"]
            leaving = metadata.get("deletionTimestamp") is not None
            if leaving or metadata["name"] == keep or metadata["name"] in living:
                continue
            out.append(DeleteChild(row, metadata["name"], metadata["uid"]))
    return out


def _group_object(world: World, gang: GangStatus) -> Mapping[str, Any] | None:
    """Return the existing group object of the current attempt, or None."""
    groups = world.children.get(row_of(gang.api_version), ())
    return next((g for g in groups if g["metadata"]["name"] == gang.group), None)


def is_held_by_queue(world: World) -> bool:
    """Return whether a queue has not yet admitted the job's group."""
    gang = recorded_gang(world.job)
    if gang is None:
        return False
    if gang.type is GangType.KUEUE:
        return any(pod.is_gated for pod in world.pods_of_gang)
    return gang.type is GangType.VOLCANO and _phase(world, gang) == _NOT_ADMITTED


def report(world: World) -> GangReport | None:
    """Return the state of the current attempt's gang, or None for a job that never had a gang."""
    gang = recorded_gang(world.job)
    if gang is None:
        known = world.job.status.condition(ConditionType.GANG_SCHEDULED) is not None
        return GangReport(False, "NoGang", "each pod is placed for itself") if known else None
    group = f"the {gang.type} group {gang.group}"
    living = [p for p in world.pods_of_gang if not p.terminal and not p.deleting]
    lost = next((found for p in living if (found := _lost_mark(p, gang))), None)
    if lost is not None:
        return lost
    size = gang.size
    placed = sum(p.node is not None for p in living)
    message = f"{placed} of {size} pods of {group} have a Kubernetes node"
    if placed >= size:
        return GangReport(True, "Placed", message)
    why = _why_it_waits(world, gang)
    return GangReport(False, "WaitingForGang", f"{message}: {why}" if why else message)


def why_replaced(world: World) -> str | None:
    """Return why the job needs a new gang although its spec has not changed, or None.

    A gang below its size would never be placed again. The clause follows the word `because`.
    """
    gang = recorded_gang(world.job)
    if gang is None:
        return None
    if gang.size > world.job.nodes:
        return f"the gang has {gang.size} pods and spec.nodes is {world.job.nodes}"
    if gang.type is not GangType.KUEUE:
        return None
    for pod in world.pods_of_gang:
        # Kueue counts it as done, has given its quota back and admits no successor.
        if pod.phase == "Succeeded" and not world.ended_here(pod):
            return f"{pod.name} succeeded in an earlier attempt, and Kueue admits no successor"
    return None


def _lost_mark(pod: PodView, gang: GangStatus) -> GangReport | None:
    """Return a report about a pod that lacks the mark of its gang, or None for a marked pod."""
    if not pod.gang_group:
        why = f"the API server did not serve {gang.api_version} when the pod was created"
        return GangReport(False, "NotServed", f"{pod.name} is placed for itself, because {why}")
    if gang.type is GangType.KUEUE and kueue.MANAGED not in pod.finalizers:
        why = "Kueue does not manage it: its pod integration is off, or not for this namespace"
        return GangReport(False, "NotManaged", f"{pod.name} is placed for itself, because {why}")
    if gang.type is not GangType.NATIVE or pod.native_group:
        return None
    why = "the API server dropped its field: the feature gate GenericWorkload is off there"
    return GangReport(False, "FieldDropped", f"{pod.name} is placed for itself, because {why}")


def waiting_sentence(status: DDPJobStatus, pod: str | None, *, missing: bool) -> str | None:
    """Return why a job with a gang waits, or None if its pods show the reason.

    Args:
        status: Status with the condition GangScheduled.
        pod: Message of the scheduler or the kubelet about one pod, or None.
        missing: Whether pods of the job do not exist yet.
    """
    gang = status.condition(ConditionType.GANG_SCHEDULED)
    if gang is None or gang.reason != "WaitingForGang" or missing:
        return None
    return f"{gang.message}; {pod}" if pod else gang.message


def warnings(before: DDPJobStatus, after: DDPJobStatus) -> list[Event]:
    """Return the Event about a gang that the API server ignores, once for each reason."""
    old, new = (one.condition(ConditionType.GANG_SCHEDULED) for one in (before, after))
    if new is None or new.reason not in _IGNORED or (old is not None and old.reason == new.reason):
        return []
    return [Event(EventType.WARNING, "GangIgnored", new.message)]


def _why_it_waits(world: World, gang: GangStatus) -> str:
    """Return the message of the scheduler or the queue about the group, or ""."""
    group = _group_object(world, gang)
    status = (group.get("status") or {}) if group is not None else {}
    for condition in status.get("conditions") or []:
        unmet = "True" if condition.get("type") == "Unschedulable" else "False"
        explains = condition.get("type") in _WAITING and condition.get("status") == unmet
        if explains and condition.get("message"):
            return str(condition["message"])
    if is_held_by_queue(world):
        return world.queue_message or f"the queue {gang.queue or 'default'} has not admitted it"
    return ""


def _phase(world: World, gang: GangStatus) -> str:
    group = _group_object(world, gang) or {}
    return str((group.get("status") or {}).get("phase") or "")
