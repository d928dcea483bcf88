"""Build the pod of one try of an init step.

The pod has the volumes, the security context and the placement of a worker pod, but no host name:
no other pod connects to it. Its container has the name of the worker container, by which the
operator reads the end of a pod. No container of the podTemplate is added, because a sidecar would
never end, and the worker's own settings do not fit another program.
"""

from typing import Any

from ddp_operator.api.init import InitStep, init_hash
from ddp_operator.api.job import DDPJob
from ddp_operator.api.sizes import config_text
from ddp_operator.api.spec import DDPJobSpec
from ddp_operator.builders import names
from ddp_operator.builders.defaults import Defaults
from ddp_operator.builders.env import checkpoint_variables
from ddp_operator.builders.gangs.schedulers import COSCHEDULING_GROUP, VOLCANO_GROUP
from ddp_operator.builders.overlay import apply_overlay, are_objects
from ddp_operator.builders.pod_spec import LAST_WORDS, build_pod_spec, with_lost_nodes
from ddp_wire import contract, expansion
from ddp_wire.contract import Env

_POD_INFO = "ddp-pod-info"
_OF_WORKERS = ("hostname", "subdomain", "topologySpreadConstraints")
"""Fields of a worker pod that only the rendezvous and the spread of several pods need."""
_GROUP_MARKS = {
    COSCHEDULING_GROUP,
    VOLCANO_GROUP,
    "kueue.x-k8s.io/pod-group-name",
    "kueue.x-k8s.io/pod-group-total-count",
}
"""Labels and annotations that make a pod a member of a group. An init pod is placed on its own."""


def build_init_pod(job: DDPJob, step: InitStep, number: int, defaults: Defaults) -> dict[str, Any]:
    """Return the pod of a try of an init step. `number` is the number of the try, from 1."""
    spec = build_pod_spec(job, 0, defaults)
    for field in _OF_WORKERS:
        spec.pop(field, None)
    [worker] = spec["containers"]
    spec["volumes"] = [one for one in spec["volumes"] if one["name"] != _POD_INFO]
    spec["containers"] = [_container(job, step, number, worker)]
    labels = {**names.labels(job), contract.LABEL_INIT_STEP: step.name}
    fixed = {contract.ANNOTATION_SPEC_HASH: init_hash(job.spec.init or [])}
    pod: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": names.init_pod_name(job, step.name, number),
            "namespace": job.metadata.namespace,
            "labels": labels,
            "annotations": fixed,
            "ownerReferences": [names.owner_reference(job)],
        },
        "spec": spec,
    }
    if job.spec.pod_template is None:
        return pod
    pod = apply_overlay(pod, _overlay(job.spec))
    tolerations = pod["spec"].get("tolerations") or []
    if are_objects(tolerations):
        pod["spec"]["tolerations"] = with_lost_nodes(tolerations)
    pod["metadata"]["labels"] |= labels
    pod["metadata"]["annotations"] |= fixed
    return pod


def _overlay(spec: DDPJobSpec) -> dict[str, Any]:
    """Return the podTemplate without its containers and without the marks of a group of pods."""
    template = spec.pod_template
    given = template.model_dump(by_alias=True, exclude_none=True) if template is not None else {}
    pod = {k: v for k, v in given.get("spec", {}).items() if not k.lower().endswith("containers")}
    metadata = {
        kind: {key: value for key, value in of_kind.items() if key not in _GROUP_MARKS}
        for kind, of_kind in given.get("metadata", {}).items()
    }
    return {"metadata": metadata, "spec": pod}


def _container(job: DDPJob, step: InitStep, number: int, worker: dict[str, Any]) -> dict[str, Any]:
    """Return the container of a step, from the worker container of the same job."""
    given = step.resources
    container: dict[str, Any] = {
        "name": contract.WORKER_CONTAINER,
        "image": step.image or worker["image"],
        "imagePullPolicy": worker["imagePullPolicy"],
        "env": _environment(job, step, number),
        "resources": given.model_dump(by_alias=True, exclude_none=True) if given else {},
        "volumeMounts": [one for one in worker["volumeMounts"] if one["name"] != _POD_INFO],
        "terminationMessagePolicy": LAST_WORDS,
        "securityContext": {**worker["securityContext"], "capabilities": {"drop": ["ALL"]}},
    }
    if step.command is None:
        return container | {"command": ["python3", "-m", "ddp_trainer", "call", str(step.task)]}
    return container | {"command": [*step.command, *(step.args or [])]}


def _environment(job: DDPJob, step: InitStep, number: int) -> list[dict[str, Any]]:
    """Return the variables of a step. Of several equal names, the last one takes effect."""
    fixed = {
        Env.JOB_NAME: job.metadata.name,
        Env.JOB_NAMESPACE: job.metadata.namespace,
        Env.JOB_UID: job.metadata.uid,
        Env.INIT_TRY: str(number),
        **checkpoint_variables(job),
    }
    if step.task is not None:
        fixed[Env.CONFIG] = config_text(job.spec)
    own = [{"name": str(name), "value": expansion.escape(v)} for name, v in fixed.items()]
    given = [*(job.spec.env or []), *(step.env or [])]
    return own + [one.model_dump(by_alias=True, exclude_none=True) for one in given]
