"""Keep only the fields of an object that this operator reads.

The JSON of a pod has some 10 kB. Most of it is managed fields, volumes and containers, which the
operator never reads. The operator keeps all its pods in memory. Equal strings of several objects
become one string in memory.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from ddp_operator.builders.gangs import kueue
from ddp_operator.builders.gangs.schedulers import NATIVE_FIELDS
from ddp_operator.builders.kinds import KINDS
from ddp_operator.cluster.base import Manifest
from ddp_operator.cluster.kube.paths import NODE
from ddp_operator.reconcile.node_view import CONDITION_TAINTS
from ddp_wire import contract

_IDENTITY = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "finalizers",
)
_NODE_METADATA = ("name", "uid", "resourceVersion", "labels")
_TAINT = ("key", "value", "effect")
_TOLERATION = ("key", "operator", "value", "effect")
_POD_SPEC = ("nodeName", *NATIVE_FIELDS)
_POD_STATUS = ("phase", "podIP", "reason", "message")
_CONDITIONS = {"Ready", "PodScheduled", "DisruptionTarget", "TerminationTarget"}
_CONDITION = ("type", "status", "reason", "message", "lastTransitionTime")
_OF_KUEUE = {kueue.GROUP, kueue.RETRIABLE}
_SECRETS = {contract.Env.AGENT_SECRET, contract.Env.JOB_SECRET}
_LONG = 64
"""Minimum length in characters at which a string is not shared."""
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def keep_used_fields(kind: str, manifest: Manifest) -> Manifest:
    """Return only the used fields of a DDPJob, of one of its children or of a node.

    A job keeps its whole spec and status, because a status write sends both.
    """
    kept: Manifest = _sharing_strings(_used(kind, manifest))
    return kept


def _used(kind: str, manifest: Manifest) -> Manifest:
    if kind == NODE:
        return _node(manifest)
    if kind not in KINDS:
        return {**manifest, "metadata": _job_metadata(manifest["metadata"])}
    kept = {"metadata": _child_metadata(manifest["metadata"])}
    if kind == "Pod":
        return kept | {
            "spec": _pod_spec(manifest.get("spec") or {}),
            "status": _pod_status(manifest.get("status") or {}),
        }
    return kept | KINDS[kind].used_part(manifest)


def _sharing_strings(value: Any) -> Any:
    """Return a copy of a JSON value in which equal short strings share their memory.

    The JSON decoder creates a new string for each key and value. With shared strings 1,000 jobs of
    four pods need 23 MB instead of 40 MB.
    """
    kind = type(value)
    if kind is str:
        return _shared(value) if len(value) < _LONG else value
    if kind is dict:
        return {_shared(key): _sharing_strings(item) for key, item in value.items()}
    if kind is list:
        return [_sharing_strings(item) for item in value]
    return value


def forget_shared_strings() -> None:
    """Free the strings that only `_shared` still holds.

    They lie between freed objects, so that the memory around them cannot be returned to the system.
    """
    _shared.cache_clear()


@lru_cache(maxsize=8192)
def _shared(text: str) -> str:
    """Return the stored string that equals the given one. Store at most a fixed number.

    Users choose some of the strings, so their number needs a limit. Some versions of Python never
    free a string of `sys.intern`.
    """
    return text


def _job_metadata(metadata: Mapping[str, Any]) -> Manifest:
    out = {key: value for key, value in metadata.items() if key != "managedFields"}
    annotations = out.get("annotations") or {}
    if _LAST_APPLIED in annotations:
        out["annotations"] = {k: v for k, v in annotations.items() if k != _LAST_APPLIED}
    return out


def _child_metadata(metadata: Mapping[str, Any]) -> Manifest:
    owners = metadata.get("ownerReferences") or []
    return {
        **_only(_IDENTITY, metadata),
        "labels": _ours(metadata.get("labels")),
        "annotations": _ours(metadata.get("annotations")),
        "ownerReferences": [{"uid": owner["uid"]} for owner in owners],
    }


def _node(manifest: Mapping[str, Any]) -> Manifest:
    """Return the used fields of a Kubernetes node, without the long list of its images."""
    spec = manifest.get("spec") or {}
    taints = [_only(_TAINT, taint) for taint in spec.get("taints") or []]
    return {
        "metadata": _only(_NODE_METADATA, manifest["metadata"]),
        "spec": {**_only(("unschedulable",), spec), **({"taints": taints} if taints else {})},
    }


def _pod_spec(spec: Mapping[str, Any]) -> Manifest:
    workers = (c for c in spec.get("containers") or [] if c["name"] == contract.WORKER_CONTAINER)
    sidecars = (c for c in spec.get("initContainers") or [] if c.get("restartPolicy"))
    tolerations = [
        _only(_TOLERATION, one)
        for one in spec.get("tolerations") or []
        if one.get("key") not in CONDITION_TAINTS  # Each pod has some, and nothing reads them.
    ]
    return {
        **_only(_POD_SPEC, spec),
        **({"tolerations": tolerations} if tolerations else {}),
        "initContainers": [_only(("name", "restartPolicy"), sidecar) for sidecar in sidecars],
        "containers": [
            {**_only(("name", "image"), worker), "env": _secrets(worker)} for worker in workers
        ],
    }


def _secrets(worker: Mapping[str, Any]) -> list[Manifest]:
    return [e for e in worker.get("env") or [] if e["name"] in _SECRETS]


def _pod_status(status: Mapping[str, Any]) -> Manifest:
    conditions = (c for c in status.get("conditions") or [] if c["type"] in _CONDITIONS)
    return {
        **_only(_POD_STATUS, status),
        "conditions": [_only(_CONDITION, condition) for condition in conditions],
        **{
            kind: [_container_status(one) for one in status[kind]]
            for kind in ("containerStatuses", "initContainerStatuses")
            if status.get(kind)
        },
    }


def _container_status(given: Mapping[str, Any]) -> Manifest:
    """Return the used fields of a container status. Only the worker's has times and image id."""
    if given.get("name") == contract.WORKER_CONTAINER:
        return _only(("name", "ready", "state", "imageID"), given)
    state = given.get("state") or {}
    kept = {key: _only(("reason", "message", "exitCode"), value) for key, value in state.items()}
    return {**_only(("name", "ready"), given), "state": kept}


def _only(keys: Iterable[str], given: Mapping[str, Any]) -> Manifest:
    return {key: given[key] for key in keys if key in given}


def _ours(given: Mapping[str, Any] | None) -> Manifest:
    """Return only the labels or annotations of this product, and those of Kueue that it reads."""
    kept = (k for k in given or {} if k.startswith(contract.GROUP) or k in _OF_KUEUE)
    return {k: (given or {})[k] for k in kept}
