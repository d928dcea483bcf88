"""View of a worker pod: the fields that decisions depend on, read from the pod's manifest.

Decisions use the state of the worker container, because it changes as soon as the worker has ended.
The kubelet changes the pod's phase seconds later. The termination message of the worker contains
the agent's last status.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from pydantic import ValidationError

from ddp_operator.builders.gangs import kueue
from ddp_operator.builders.gangs.schedulers import NATIVE_FIELDS
from ddp_operator.builders.image_names import image_by_digest
from ddp_operator.builders.names import generation_of
from ddp_operator.reconcile import containers
from ddp_operator.reconcile.containers import InitFailure
from ddp_operator.reconcile.node_view import Toleration, view_tolerations
from ddp_wire import contract
from ddp_wire.contract import Env
from ddp_wire.messages import AgentStatus
from ddp_wire.orders import order_from_text

EVICTED_BY_VOLCANO = "Evict"
"""Reason of the condition Ready that Volcano sets on a pod just before it deletes the pod."""
SCHEDULING_GATED = "SchedulingGated"
"""Reason of the condition PodScheduled of a pod that a scheduling gate holds."""
STOPPED_BY_QUEUE = "TerminationTarget"
"""Condition that Kueue sets on a pod before it deletes the pod: preemption, eviction or a stopped
queue."""
_ENDED = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True)
class Termination:
    """End of the worker container."""

    exit_code: int
    reason: str
    """Reason that the kubelet reports, for example OOMKilled."""
    at: datetime | None
    """Time at which the container ended, by the clock of the Kubernetes node."""
    final: AgentStatus | None
    """Last status of the agent, from the container's termination message."""
    words: str = ""
    """Error of the container runtime or last line of the log, if the agent left no status."""


@dataclass(frozen=True)
class PodView:
    """The fields of a worker pod that decisions depend on."""

    name: str
    uid: str
    index: int
    phase: str
    """Phase of the worker: Pending, Running, Succeeded, Failed or Unknown."""
    ready: bool = False
    """Whether the worker container is ready, even if another container is not."""
    attempt: str = ""
    """Number of the attempt in the attempt annotation, or the annotation's text if it is not an
    order."""
    first_attempt: str = ""
    """Attempt for which the operator created the pod. None for a pod of an older operator."""
    spec_hash: str = ""
    deleting: bool = False
    grace: timedelta = timedelta(0)
    """Grace period of the pod's deletion."""
    finalizers: tuple[str, ...] = ()
    """Finalizers of other controllers, which keep the deleted pod until they are removed."""
    node: str | None = None
    tolerations: tuple[Toleration, ...] = ()
    """Tolerations of the pod, including those that the cluster added."""
    scheduled_at: datetime | None = None
    """Time at which the pod was assigned to its Kubernetes node, if the scheduler reports it."""
    ip: str | None = None
    agent_port: int = contract.AGENT_PORT
    """Port of the agent. The job's status names it, because the pod's user could change it."""
    image: str | None = None
    """Image of the worker container."""
    image_by_digest: str | None = None
    """Image with the digest that the worker runs, if the runtime reports the digest."""
    secret: str = field(default="", repr=False)
    """Secret that signs the messages between the operator and the pod's agent. Old pods have
    none."""
    job_secret: str = field(default="", repr=False)
    """Secret of all pods of the job, which signs messages between agents. Old pods have none."""
    waiting: str | None = None
    """Reason why the pod does not run yet, as the scheduler or the kubelet reports it."""
    reason: str | None = None
    """Reason in the pod status if the pod failed as a whole, for example Evicted."""
    message: str = ""
    """Message of the kubelet about `reason`."""
    init_failure: InitFailure | None = None
    """Failure of the init container that ended the pod before the worker could run."""
    init_step: str = ""
    """Name of the init step that the pod runs, or "" for a worker pod."""
    beside: str | None = None
    """Problem of another container while the worker is ready."""
    gang_group: str = ""
    """Name of the pod's group object, or "" for a pod without a gang."""
    native_group: str = ""
    """Name of the group object in the field that only Kubernetes' own gang scheduling reads. The
    API server drops the field if its feature gate is off."""
    queue_group: str = ""
    """Name of the group of Kueue to which the operator has added the pod, or ""."""
    group_ends: bool = False
    """Whether the pod ends its group: Kueue expects no successors of its ended pods."""
    disruption: str | None = None
    """Reason in the condition by which another controller announced the end of the pod, or None."""
    disruption_message: str = ""
    """Reason and message of the queue that ended the pod, or ""."""
    ended: bool = False
    """Whether the pod as a whole has ended, as its phase shows. The kubelet reports this up to
    seconds after the end of the worker, and never after the loss of its Kubernetes node."""
    termination: Termination | None = None
    lingers: bool = False
    """Whether another container of the pod still runs after the worker has ended."""

    @property
    def terminal(self) -> bool:
        """Whether the worker container has ended and will never run again."""
        return self.phase in _ENDED

    @property
    def generation(self) -> int:
        """Generation in the name of the pod."""
        return generation_of(self.name)

    @property
    def is_gated(self) -> bool:
        """Whether a scheduling gate holds the pod."""
        reason = (self.waiting or "").partition(":")[0]
        return self.phase == "Pending" and reason == SCHEDULING_GATED

    @property
    def never_runs(self) -> bool:
        """Whether the pod is deleted and had no Kubernetes node, so that it cannot get one."""
        return self.deleting and self.node is None

    @property
    def has_place(self) -> bool:
        """Whether the pod has a Kubernetes node and is not about to leave it."""
        return self.node is not None and not self.terminal and not self.deleting

    @property
    def held(self) -> bool:
        """Whether only finalizers keep the pod, so that another deletion would change nothing."""
        if not self.deleting or not self.finalizers:
            return False
        return self.terminal or not self.grace


def parse_time(text: str | None) -> datetime | None:
    """Convert an API timestamp to an aware datetime."""
    return datetime.fromisoformat(text) if text else None


def view_pod(manifest: Mapping[str, Any]) -> PodView:
    """Return the view of a pod from its manifest."""
    metadata, spec = manifest["metadata"], manifest.get("spec") or {}
    status = manifest.get("status") or {}
    annotations, labels = metadata.get("annotations") or {}, metadata.get("labels") or {}
    conditions = {c["type"]: c for c in status.get("conditions") or []}
    container: Mapping[str, Any] = next(
        (
            c
            for c in status.get("containerStatuses") or []
            if c.get("name") == contract.WORKER_CONTAINER
        ),
        {},
    )
    worker = _worker(spec)
    termination = _termination(container)
    return PodView(
        name=metadata["name"],
        uid=metadata["uid"],
        index=_index(labels.get(contract.LABEL_NODE_INDEX, "")),
        phase=_phase(status, container, termination),
        ready=containers.worker_is_ready(conditions, container),
        attempt=_attempt(annotations.get(contract.ANNOTATION_ATTEMPT, "")),
        first_attempt=annotations.get(contract.ANNOTATION_FIRST_ATTEMPT, ""),
        spec_hash=annotations.get(contract.ANNOTATION_SPEC_HASH, ""),
        deleting=metadata.get("deletionTimestamp") is not None,
        grace=timedelta(seconds=metadata.get("deletionGracePeriodSeconds") or 0),
        finalizers=tuple(metadata.get("finalizers") or ()),
        node=spec.get("nodeName"),
        tolerations=view_tolerations(spec.get("tolerations") or []),
        scheduled_at=_scheduled_at(conditions),
        ip=status.get("podIP"),
        image=worker.get("image"),
        image_by_digest=image_by_digest(worker.get("image") or "", container.get("imageID") or ""),
        secret=_secret(worker, Env.AGENT_SECRET),
        job_secret=_secret(worker, Env.JOB_SECRET),
        waiting=_unscheduled(conditions)
        or containers.init_waiting(spec, status)
        or containers.waiting(container),
        reason=status.get("reason"),
        message=containers.last_line(status.get("message") or ""),
        init_failure=containers.init_failure(spec, status),
        init_step=labels.get(contract.LABEL_INIT_STEP, ""),
        beside=containers.trouble_beside(spec, status, conditions, container),
        gang_group=annotations.get(contract.ANNOTATION_GANG_GROUP, ""),
        native_group=_native_group(spec),
        queue_group=kueue.group_of(metadata),
        group_ends=annotations.get(kueue.RETRIABLE) == kueue.NOT_RETRIABLE,
        disruption=_disruption(conditions),
        disruption_message=_queue_message(conditions),
        ended=status.get("phase") in _ENDED,
        termination=termination,
        lingers=termination is not None and _other_runs(status),
    )


def _worker(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the worker container of a pod spec, or an empty one."""
    containers = spec.get("containers") or []
    return next((c for c in containers if c["name"] == contract.WORKER_CONTAINER), {})


def _secret(worker: Mapping[str, Any], name: Env) -> str:
    values = [e.get("value") for e in worker.get("env") or [] if e["name"] == name]
    return str(values[-1]) if values and values[-1] else ""  # The last one takes effect.


def _phase(
    status: Mapping[str, Any], worker: Mapping[str, Any], termination: Termination | None
) -> str:
    """Return the phase of the worker container, or of the pod before the worker runs.

    The pod is Pending until every container has started. The kubelet changes the phase seconds
    after the worker's end, and only after all sidecars have ended.
    """
    phase = str(status.get("phase", "Pending"))
    if termination is None:
        runs = phase == "Pending" and "running" in (worker.get("state") or {})
        return "Running" if runs else phase
    return "Succeeded" if termination.exit_code == 0 else "Failed"


def _other_runs(status: Mapping[str, Any]) -> bool:
    """Return whether any container except the worker still runs.

    The phase does not show this, because the kubelet changes it seconds after the worker's end.
    """
    others = (
        c
        for c in status.get("containerStatuses") or []
        if c.get("name") != contract.WORKER_CONTAINER
    )
    ended = all("terminated" in (c.get("state") or {}) for c in others)
    return status.get("phase") in {"Running", "Pending"} and not ended


def _attempt(annotation: str) -> str:
    order = order_from_text(annotation)
    return annotation if order is None else str(order.attempt)


def _index(label: str) -> int:
    return int(label) if label.isascii() and label.isdigit() else -1


def _scheduled_at(conditions: Mapping[str, Any]) -> datetime | None:
    scheduled = conditions.get("PodScheduled", {})
    is_scheduled = scheduled.get("status") == "True"
    return parse_time(scheduled.get("lastTransitionTime")) if is_scheduled else None


def _unscheduled(conditions: Mapping[str, Any]) -> str | None:
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") != "False":
        return None
    return f"{scheduled.get('reason', 'Unscheduled')}: {scheduled.get('message', '')}"


def _disruption(conditions: Mapping[str, Any]) -> str | None:
    found = conditions.get("DisruptionTarget", {})
    if found.get("status") == "True":
        return found.get("reason") or "Unknown"
    return _ended_by_queue(conditions)[0]


def _queue_message(conditions: Mapping[str, Any]) -> str:
    name, found = _ended_by_queue(conditions)
    message = containers.last_line(str(found.get("message") or ""))
    reason = str(found.get("reason") or "") if name == STOPPED_BY_QUEUE else ""
    return ": ".join(part for part in (reason, message) if part)


def _ended_by_queue(conditions: Mapping[str, Any]) -> tuple[str | None, Mapping[str, Any]]:
    """Return the reason and the condition by which a queue announced the end of the pod."""
    ready, target = conditions.get("Ready", {}), conditions.get(STOPPED_BY_QUEUE, {})
    if target.get("status") == "True":
        return STOPPED_BY_QUEUE, target
    if ready.get("status") == "False" and ready.get("reason") == EVICTED_BY_VOLCANO:
        return EVICTED_BY_VOLCANO, ready
    return None, {}


def _native_group(spec: Mapping[str, Any]) -> str:
    workload, group = ((spec.get(field) or {}) for field in NATIVE_FIELDS)
    return str(workload.get("name") or group.get("podGroupName") or "")


def _termination(container: Mapping[str, Any]) -> Termination | None:
    terminated = (container.get("state") or {}).get("terminated")
    if not terminated:
        return None
    message = terminated.get("message") or ""
    try:
        final = AgentStatus.model_validate_json(message)
    except ValidationError:
        final = None  # The container was killed before its agent wrote a status.
    return Termination(
        exit_code=int(terminated.get("exitCode", 1)),
        reason=terminated.get("reason", ""),
        at=parse_time(terminated.get("finishedAt")),
        final=final,
        words="" if final else containers.last_line(message),
    )
