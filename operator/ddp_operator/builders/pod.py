"""Build the worker pod.

The pod is built in three steps. Step 1 derives a complete pod from the job's spec and the
operator's defaults. Step 2 merges the job's podTemplate into the pod. Step 3 restores the fields
that a podTemplate must not change: the labels and annotations by which the operator finds its pods,
the agent's command and variables, and restricted security contexts. Without a podTemplate only step
1 is needed.

The result depends on the job, the node's index and the attempt alone. Secrets are added when the
pod is created (`with_secrets`), so that a plan does not contain them.
"""

from dataclasses import replace
from typing import Any

from ddp_operator.api.job import DDPJob
from ddp_operator.builders import names
from ddp_operator.builders.affinity import avoided_nodes, with_terms
from ddp_operator.builders.defaults import Defaults
from ddp_operator.builders.gangs.schedulers import with_marks
from ddp_operator.builders.host_ports import ports_of
from ddp_operator.builders.overlay import apply_overlay, are_objects
from ddp_operator.builders.placement import placement_terms
from ddp_operator.builders.pod_spec import LAST_WORDS, build_pod_spec, with_lost_nodes
from ddp_wire import contract

_RESERVED = "DDP_"
"""Prefix of the environment variables that only the operator sets, for the agent."""
_KUBERNETES_GRACE_SECONDS = 30
"""Grace period that Kubernetes gives to a pod whose podTemplate removes the field."""


def build_pod(
    job: DDPJob, index: int, attempt: int, defaults: Defaults, generation: int = 1
) -> dict[str, Any]:
    """Return the pod of node `index`. Its agent starts with attempt number `attempt`.

    The pod satisfies the Restricted profile of the Pod Security Standards. Its generation affects
    only its name.
    """
    fixed = {
        contract.ANNOTATION_ATTEMPT: replace(job.order, attempt=attempt).to_text(),
        contract.ANNOTATION_FIRST_ATTEMPT: str(attempt),
        contract.ANNOTATION_SPEC_HASH: job.spec_hash,
    }
    pod: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": names.pod_name(job, index, generation),
            "namespace": job.metadata.namespace,
            "labels": {**names.labels(job), contract.LABEL_NODE_INDEX: str(index)},
            "annotations": _scraped(job) | fixed,
            "ownerReferences": [names.owner_reference(job)],
        },
        "spec": build_pod_spec(job, index, defaults),
    }
    template = job.spec.pod_template
    if template is None:
        placed = _with_grace(_with_affinity(pod, job, defaults))
        return with_marks(placed, job, index, defaults.gangs)
    overlay = template.model_dump(by_alias=True, exclude_none=True)
    merged: dict[str, Any] = apply_overlay(pod, overlay)
    # The overlay cannot change these labels and annotations: the operator finds its pods by them.
    tolerations = merged["spec"].get("tolerations") or []
    if are_objects(tolerations):
        merged["spec"]["tolerations"] = with_lost_nodes(tolerations)
    merged["metadata"]["labels"] |= pod["metadata"]["labels"]
    merged["metadata"]["annotations"] |= fixed
    for kind in ("containers", "initContainers"):
        if are_objects(merged["spec"].get(kind)):
            merged["spec"][kind] = [
                {"terminationMessagePolicy": LAST_WORDS, **_restricted(item)}
                for item in merged["spec"][kind]
            ]
    if are_objects(merged["spec"].get("containers")):
        (worker,) = pod["spec"]["containers"]
        merged["spec"]["containers"] = [
            _with_agent(item, worker) if item.get("name") == worker["name"] else item
            for item in merged["spec"]["containers"]
        ]
    placed = _with_grace(_with_affinity(merged, job, defaults))
    return with_marks(placed, job, index, defaults.gangs)


def _scraped(job: DDPJob) -> dict[str, str]:
    """Return annotations by which a common Prometheus configuration finds the pod's metrics."""
    return {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(ports_of(job).agent),
        "prometheus.io/path": "/metrics",
    }


def _with_affinity(pod: dict[str, Any], job: DDPJob, defaults: Defaults) -> dict[str, Any]:
    """Return the pod with the operator's terms added to its affinity, if there are any."""
    placed = placement_terms(job, defaults.gpu_product_label)
    affinity = with_terms(
        pod["spec"].get("affinity"), [*placed, *avoided_nodes(job.status.strikes)]
    )
    return pod if affinity is None else {**pod, "spec": {**pod["spec"], "affinity": affinity}}


def _with_agent(container: dict[str, Any], worker: dict[str, Any]) -> dict[str, Any]:
    """Return the worker container with the agent's own command and variables.

    The podTemplate cannot change them, because the operator observes the pod through its agent.
    """
    given = container.get("env")
    if given is not None and not are_objects(given):
        return container  # The API server reports it.
    own = {one["name"]: one for one in worker["env"] if _is_reserved(one["name"])}
    merged = {str(one.get("name")): one for one in given or []}
    env = [v for name, v in (own | merged | own).items() if name in own or not _is_reserved(name)]
    kept = {key: value for key, value in container.items() if key not in {"args", "command"}}
    return kept | {"command": worker["command"], "env": env}


def _is_reserved(name: str) -> bool:
    return name.startswith(_RESERVED)


def _restricted(container: dict[str, Any]) -> dict[str, Any]:
    """Return a podTemplate container without the privileges that Kubernetes grants by default.

    A container that requests privileges keeps its own security context, because the API server
    refuses contradictory fields.
    """
    context = container.get("securityContext") or {}
    capabilities = (context.get("capabilities") or {}) if isinstance(context, dict) else None
    if not isinstance(capabilities, dict):
        return container  # The API server reports it.
    if context.get("privileged") or capabilities.get("add"):
        return container
    defaults = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    given = {key: value for key, value in context.items() if value is not None}
    return {**container, "securityContext": defaults | given}


def with_secrets(pod: dict[str, Any], secret: str, job_secret: str) -> dict[str, Any]:
    """Return the pod with the secrets with which its agent signs messages.

    Only the specs of pods contain them, so only a user who may read the pods can know them.

    Args:
        pod: Manifest of the pod.
        secret: Secret of this pod, for messages between the operator and the agent.
        job_secret: Secret of all pods of the job, for messages between agents. "" if agents
            exchange no messages.
    """
    pod = _with_variable(pod, contract.Env.AGENT_SECRET, secret)
    return _with_variable(pod, contract.Env.JOB_SECRET, job_secret)


def _with_grace(pod: dict[str, Any]) -> dict[str, Any]:
    """Return the pod with its grace period in the environment, where the agent reads it."""
    seconds = pod["spec"]["terminationGracePeriodSeconds"]
    seconds = _KUBERNETES_GRACE_SECONDS if seconds is None else seconds
    return _with_variable(pod, contract.Env.GRACE_SECONDS, str(seconds))


def _with_variable(pod: dict[str, Any], name: contract.Env, value: str) -> dict[str, Any]:
    """Return the pod with a worker variable that no other variable of the same name overrides."""
    entry = {"name": str(name), "value": value}
    containers = pod["spec"]["containers"]
    if not are_objects(containers):
        return pod
    containers = [
        {**c, "env": [*c["env"], entry]}
        if c.get("name") == contract.WORKER_CONTAINER and are_objects(c.get("env"))
        else c
        for c in containers
    ]
    return {**pod, "spec": {**pod["spec"], "containers": containers}}
