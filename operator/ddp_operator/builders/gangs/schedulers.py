"""Build the group object of a job and mark its pods, for each gang scheduler.

A group object must exist before its pods, and its name changes whenever all pods are replaced: most
schedulers never change the size of a group, and some keep a deleted group until its pods have
ended. No other module depends on which scheduler places the pods.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ddp_operator.api.gang import GangStatus, GangType
from ddp_operator.api.job import DDPJob
from ddp_operator.builders import names
from ddp_operator.builders.gangs import kueue, versions
from ddp_operator.builders.gangs.quantities import pod_requests, times
from ddp_operator.builders.gangs.versions import Gangs
from ddp_wire import contract

Manifest = dict[str, Any]

VOLCANO_SCHEDULER = "volcano"
VOLCANO_GROUP = "scheduling.k8s.io/group-name"
"""Annotation on a pod that names its Volcano PodGroup."""
COSCHEDULING_GROUP = "scheduling.x-k8s.io/pod-group"
"""Label on a pod that names its PodGroup of scheduler-plugins."""
NATIVE_FIELDS = ("workloadRef", "schedulingGroup")
"""Fields of a pod spec that name the pod's group, in Kubernetes 1.35 and in later releases."""
_POD_GROUP = "workers"
"""Name of the only group in a Workload."""


def new_gang(job: DDPJob, gangs: Gangs) -> GangStatus | None:
    """Return the gang for the next attempt if all its pods are created together, or None."""
    kind = gang_type(job, gangs)
    api_version = gangs.api_version(kind)
    if api_version is None:
        return None
    given = job.spec.gang.queue if job.spec.gang is not None else None
    queue = (given or gangs.queue) if kind in (GangType.VOLCANO, GangType.KUEUE) else None
    number = job.status.attempt + 1
    group = f"{job.metadata.name}-{number}"
    # The status keeps the size: Kubernetes refuses to change that of a group, and a user may edit
    # minNodes while the group exists.
    elastic = job.spec.elastic
    return GangStatus.model_validate(
        {
            "type": kind,
            "group": kueue.group_name(job, number) if kind is GangType.KUEUE else group,
            "size": job.spec.nodes if elastic is None else elastic.min_nodes,
            "apiVersion": api_version,
            "queue": queue,
        }
    )


def gang_type(job: DDPJob, gangs: Gangs) -> GangType:
    """Return the gang scheduler that a job selects, or the operator's default."""
    return job.spec.gang.type if job.spec.gang is not None else gangs.default


def recorded_gang(job: DDPJob) -> GangStatus | None:
    """Return the gang of the current attempt's pods from the job's status, or None."""
    return job.status.pods.gang if job.status.pods is not None else None


def build_group(job: DDPJob, gang: GangStatus, pod: Manifest) -> Manifest:
    """Return the group object of a job's gang.

    Args:
        job: The job.
        gang: The job's gang.
        pod: Manifest of any pod of the gang. The group object copies its priority.
    """
    return {
        "apiVersion": gang.api_version,
        "kind": versions.group_kind(gang.api_version),
        "metadata": {
            "name": gang.group,
            "namespace": job.metadata.namespace,
            "labels": names.labels(job),
            "ownerReferences": [names.owner_reference(job)],
        },
        "spec": _SHAPES[gang.api_version].spec(_Request(gang, gang.size, pod)),
    }


def in_gang(job: DDPJob, index: int) -> bool:
    """Return whether the pod of a node belongs to the gang of the job's current pods.

    The size in the status decides, because a user may edit the smallest size of the job while its
    group exists. Spares, and the other nodes of an elastic job, are placed for themselves.
    """
    gang = recorded_gang(job)
    return gang is not None and index < gang.size


def with_marks(pod: Manifest, job: DDPJob, index: int, gangs: Gangs) -> Manifest:
    """Return a pod with the label, annotation or field that names its group, if it has one.

    If the API server no longer serves the group object, the pod is placed on its own, because
    another API version ignores the mark.
    """
    gang = recorded_gang(job)
    if gang is None or not gangs.serves(gang.api_version):
        return pod
    if not in_gang(job, index):
        # Kueue admits each pod outside the gang for itself.
        return kueue.with_queue(pod, gang) if gang.type is GangType.KUEUE else pod
    pod = _annotated(pod, contract.ANNOTATION_GANG_GROUP, gang.group)
    if gang.type is GangType.KUEUE:
        return kueue.with_group(kueue.with_queue(pod, gang), gang, index)
    return _SHAPES[gang.api_version].mark(pod, gang.group, gangs)


@dataclass(frozen=True)
class _Request:
    """Inputs from which the group object of a gang is built."""

    gang: GangStatus
    size: int
    pod: Manifest

    @property
    def priority(self) -> Manifest:
        """Return the priority fields of the group object, if the pods have a priority."""
        name = self.pod["spec"].get("priorityClassName")
        return {"priorityClassName": name} if name else {}


@dataclass(frozen=True)
class _Shape:
    """Format of a group object, and of the marks on its pods, in one API version."""

    spec: Callable[[_Request], Manifest]
    """Function that returns the spec of the group object."""
    mark: Callable[[Manifest, str, Gangs], Manifest]
    """Function that returns a pod with the marks of a named group."""


def _workload_spec(request: _Request) -> Manifest:
    gang = {"gang": {"minCount": request.size}}
    return {"podGroups": [{"name": _POD_GROUP, "policy": gang}]}


def _with_workload(pod: Manifest, group: str, _: Gangs) -> Manifest:
    return _with_spec(pod, {"workloadRef": {"name": group, "podGroup": _POD_GROUP}})


def _native_spec(disruption_mode: Any) -> Callable[[_Request], Manifest]:
    """Return a function that builds a Kubernetes PodGroup whose pods are preempted together."""

    def spec(request: _Request) -> Manifest:
        policy = {"gang": {"minCount": request.size}}
        mode = {"disruptionMode": disruption_mode}
        return {"schedulingPolicy": policy, **mode, **request.priority}

    return spec


def _with_scheduling_group(pod: Manifest, group: str, _: Gangs) -> Manifest:
    return _with_spec(pod, {"schedulingGroup": {"podGroupName": group}})


def _volcano_spec(request: _Request) -> Manifest:
    """Return the spec of a Volcano PodGroup. The queue admits it when it has enough resources."""
    queue = {"queue": request.gang.queue} if request.gang.queue else {}
    resources = times(pod_requests(request.pod["spec"]), request.size)
    needed = {"minResources": resources} if resources else {}
    return {"minMember": request.size, **queue, **needed, **request.priority}


def _with_volcano(pod: Manifest, group: str, _: Gangs) -> Manifest:
    name = pod["spec"].get("schedulerName") or VOLCANO_SCHEDULER
    return _with_spec(_annotated(pod, VOLCANO_GROUP, group), {"schedulerName": name})


def _coscheduling_spec(request: _Request) -> Manifest:
    return {"minMember": request.size}


def _with_coscheduling(pod: Manifest, group: str, gangs: Gangs) -> Manifest:
    metadata = pod["metadata"]
    labels = {**metadata["labels"], COSCHEDULING_GROUP: group}
    marked = {**pod, "metadata": {**metadata, "labels": labels}}
    name = pod["spec"].get("schedulerName") or gangs.coscheduling_scheduler
    return _with_spec(marked, {"schedulerName": name}) if name else marked


def _with_spec(pod: Manifest, fields: Mapping[str, Any]) -> Manifest:
    return {**pod, "spec": {**pod["spec"], **fields}}


def _annotated(pod: Manifest, name: str, value: str) -> Manifest:
    metadata = pod["metadata"]
    annotations = {**metadata["annotations"], name: value}
    return {**pod, "metadata": {**metadata, "annotations": annotations}}


_SHAPES: Mapping[str, _Shape] = {
    versions.NATIVE_1_35: _Shape(_workload_spec, _with_workload),
    versions.NATIVE_1_36: _Shape(_native_spec("PodGroup"), _with_scheduling_group),
    versions.NATIVE_1_37: _Shape(_native_spec({"all": {}}), _with_scheduling_group),
    versions.VOLCANO: _Shape(_volcano_spec, _with_volcano),
    versions.COSCHEDULING: _Shape(_coscheduling_spec, _with_coscheduling),
}
"""Format of the group objects and marks, by API version."""
