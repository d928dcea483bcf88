"""Builders of jobs, pods, agent statuses and observed worlds for tests."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from ddp_operator.api.base import API_VERSION, KIND
from ddp_operator.api.job import DDPJob, parse_job
from ddp_operator.api.status import (
    Condition,
    ConditionStatus,
    ConditionType,
    DDPJobStatus,
    FailureStatus,
)
from ddp_operator.builders import names
from ddp_operator.builders.defaults import Defaults
from ddp_operator.builders.network import PolicyPeer
from ddp_operator.builders.service import build_service
from ddp_operator.cluster.base import Manifest
from ddp_operator.cluster.kube.used_fields import keep_used_fields
from ddp_operator.reconcile.children import fresh_pods
from ddp_operator.reconcile.decide import decide
from ddp_operator.reconcile.plan import Action, Plan
from ddp_operator.reconcile.pod_view import PodView, Termination, view_pod
from ddp_operator.reconcile.world import PROGRESS_INTERVAL, World
from ddp_wire import contract
from ddp_wire.messages import AgentPhase, AgentStatus, Failure

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
UID = "6f1c4f0e-8d0c-4d55-9d4b-3f2f5b0a7c11"
DEFAULTS = Defaults(image="registry.example/ddp-trainer:1")
AGENT_CLIENTS = (
    PolicyPeer(
        namespace_selector={"matchLabels": {"kubernetes.io/metadata.name": "ddp-system"}},
        pod_selector={
            "matchLabels": {
                "app.kubernetes.io/name": "ddp-trainer",
                "app.kubernetes.io/instance": "ddp-trainer",
                "app.kubernetes.io/component": "operator",
            }
        },
    ),
    PolicyPeer(
        namespace_selector={},
        pod_selector={"matchLabels": {"app.kubernetes.io/name": "prometheus"}},
    ),
)
"""Peers that the chart writes by default. Its admission policy allows no others."""
GUARDED = replace(DEFAULTS, agent_clients=AGENT_CLIENTS)
"""Defaults of an operator that creates NetworkPolicies, as the chart installs it."""


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def job_manifest(name: str = "digits", **spec: Any) -> Manifest:
    """Return a job as the API server stores it. Spec fields are named in camelCase."""
    if "task" not in spec and "command" not in spec:
        spec["task"] = "ddp_trainer.tasks.miniresnet:build"
    metadata = {
        "name": name,
        "namespace": "team-a",
        "uid": UID,
        "resourceVersion": "1",
        "generation": 1,
        "creationTimestamp": NOW.isoformat(),
    }
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}


def new_job(name: str = "digits", **spec: Any) -> DDPJob:
    return parse_job(job_manifest(name, **spec))


def with_status(job: DDPJob, **fields: Any) -> DDPJob:
    """Return the job with changed status fields, which are named as in Python."""
    return job.model_copy(update={"status": job.status.model_copy(update=fields)})


def condition(kind: ConditionType, value: str, reason: str = "Test") -> Condition:
    return Condition(
        type=kind,
        status=ConditionStatus(value),
        reason=reason,
        last_transition_time=NOW,
        observed_generation=1,
    )


def active_job(
    *, attempt: int = 1, formed: bool = True, status: Mapping[str, Any] | None = None, **spec: Any
) -> DDPJob:
    """Return a job whose attempt started at NOW. `formed`: all ranks have joined."""
    job = new_job(**({"nodes": 2} | spec))
    given: dict[str, Any] = {
        "attempt": attempt,
        "attempt_spec_hash": job.spec_hash,
        "attempt_start_time": NOW,
        "pods": fresh_pods(job, DEFAULTS),
        "start_time": NOW,
        "conditions": [
            condition(ConditionType.RENDEZVOUSED, str(formed)),
            condition(ConditionType.PODS_READY, str(formed)),
            condition(ConditionType.SUCCEEDED, "Unknown", "Running" if formed else "Starting"),
        ],
    }
    return with_status(job, **given | dict(status or {}))


def finished_job(*, succeeded: bool, **spec: Any) -> DDPJob:
    job = active_job(**spec)
    summary = condition(ConditionType.SUCCEEDED, str(succeeded), "Completed")
    return with_status(job, completion_time=NOW, conditions=[summary], replicas=2)


def pod(job: DDPJob, index: int = 0, **fields: Any) -> PodView:
    """Return a running, ready pod of the current attempt. `fields` override its fields."""
    name = names.pod_name(job, index)
    given: dict[str, Any] = {
        "name": name,
        "uid": f"uid-{name}",
        "index": index,
        "phase": "Running",
        "ready": True,
        "attempt": str(job.status.attempt),
        "first_attempt": str(job.status.attempt),
        "spec_hash": job.spec_hash,
        "node": f"machine-{index}",
        "ip": f"10.0.0.{index + 1}",
    }
    return PodView(**(given | fields))


def all_pods(job: DDPJob, **fields: Any) -> tuple[PodView, ...]:
    return tuple(pod(job, index, **fields) for index in range(job.spec.nodes))


def agent_status(
    index: int = 0, *, attempt: int = 1, phase: str = "Training", **more: Any
) -> AgentStatus:
    """Return the status that the agent of a node reports."""
    return AgentStatus(
        node_index=index,
        attempt=attempt,
        phase=AgentPhase(phase),
        since=NOW.timestamp(),
        **more,
    )


def failed_status(index: int = 0, *, attempt: int = 1, **failure: Any) -> AgentStatus:
    """Return the status after a failure, one second before NOW unless `at` is given."""
    given: dict[str, Any] = {
        "attempt": attempt,
        "at": after(-1).timestamp(),
        "rank": index,
        "exit_code": 1,
    }
    if "signal" in failure:
        given["exit_code"] = None
    cause = Failure(**(given | failure))
    return agent_status(index, attempt=attempt, phase="Failed", failure=cause)


def ended(code: int = 0, *, final: AgentStatus | None = None, **fields: Any) -> Termination:
    """Return the termination of a container that ended at NOW."""
    given = {"reason": "Completed" if code == 0 else "Error", "at": NOW}
    return Termination(exit_code=code, final=final, **(given | fields))


def last_failure(attempt: int = 1, **fields: Any) -> FailureStatus:
    given = {"attempt": attempt, "reason": "RankFailed", "message": "rank 0 failed", "time": NOW}
    return FailureStatus(**(given | fields))


def failure(plan: Plan) -> FailureStatus:
    """Return the failure that a plan writes to the status."""
    assert plan.status.last_failure is not None
    return plan.status.last_failure


def world(
    job: DDPJob,
    pods: Iterable[PodView] = (),
    *,
    now: datetime = NOW,
    statuses: Mapping[int, AgentStatus] | None = None,
    service: bool = True,
    blocked: str | None = None,
    silent: Iterable[int] = (),
    undecided: float | None = 3.0,
    deleting: float | None = None,
    progress_interval: timedelta = PROGRESS_INTERVAL,
) -> World:
    """Return the observed world of a job, with agent statuses and silent agents by node index.

    `undecided` is the time in seconds since the operator first saw faults without a root cause,
    `deleting` that since it first saw that pods are being deleted.
    """
    seen = tuple(pods)
    known = {p.uid: statuses[p.index] for p in seen if statuses and p.index in statuses}
    quiet = frozenset(p.uid for p in seen if p.index in set(silent))
    return World(
        job=job,
        now=now,
        pods=seen,
        children={"Service": [build_service(job)]} if service else {},
        agent_statuses=known,
        silent=quiet,
        progress_interval=progress_interval,
        undecided_for=None if undecided is None else timedelta(seconds=undecided),
        deleting_for={
            p.uid: timedelta(seconds=deleting) for p in seen if p.deleting and deleting is not None
        },
        blocked=blocked,
    )


def plan_for(*arguments: Any, **named: Any) -> Plan:
    """Return the plan for `world(...)`."""
    return decide(world(*arguments, **named), DEFAULTS)


def summary(status: DDPJobStatus) -> tuple[str, str, str]:
    """Return value, reason and message of the summary condition."""
    found = status.condition(ConditionType.SUCCEEDED)
    assert found is not None
    return found.status.value, found.reason, found.message


def reason(status: DDPJobStatus) -> str:
    return summary(status)[1]


def only(actions: Iterable[Action], kind: type[Any]) -> list[Any]:
    return [action for action in actions if isinstance(action, kind)]


def to_wire(status: DDPJobStatus) -> dict[str, Any]:
    """Return the status as it is sent to the API server."""
    sent: dict[str, Any] = json.loads(status.model_dump_json(by_alias=True, exclude_none=True))
    return sent


def view_of(manifest: Manifest) -> PodView:
    """Return the view of a pod, which must not depend on the fields that the operator drops."""
    view = view_pod(manifest)
    assert view_pod(keep_used_fields("Pod", manifest)) == view
    return view


def pod_manifest(job: DDPJob, index: int = 0, *, version: int = 1, **status: Any) -> Manifest:
    """Return a pod manifest with the parts that caches and views read."""
    name = names.pod_name(job, index)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": job.metadata.namespace,
            "uid": f"uid-{name}",
            "resourceVersion": str(version),
            "labels": {**names.labels(job), contract.LABEL_NODE_INDEX: str(index)},
            "annotations": {
                contract.ANNOTATION_ATTEMPT: str(job.status.attempt),
                contract.ANNOTATION_SPEC_HASH: job.spec_hash,
            },
            "ownerReferences": [names.owner_reference(job)],
        },
        "spec": {"nodeName": f"machine-{index}"},
        "status": {"phase": "Running", "podIP": f"10.0.0.{index + 1}"} | status,
    }
