"""Convert the pod template of a job to fields of a DDPJob's spec.

A field with an equivalent in the spec becomes that field. Every other field of the pod goes to
`podTemplate`, so nothing is lost; what a job may set there is decided by the installation.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ddp_wire.contract import WORKER_CONTAINER

JSON = dict[str, Any]

GPU = "nvidia.com/gpu"
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - a path in the pod
_SOURCES = frozenset({"persistentVolumeClaim", "configMap", "secret", "emptyDir"})
"""Sources of volumes that a spec can name. Others need podTemplate."""
_OF_SPEC = ("nodeSelector", "tolerations", "priorityClassName")
_DROPPED = {
    "restartPolicy": "",
    "hostname": "the operator sets it",
    "subdomain": "the operator sets it",
}
"""Fields of a pod that a DDPJob replaces, and why. An empty reason needs no note."""
_PORTS = "ports"


def spec_of_pod(template: Mapping[str, Any], names: Sequence[str], notes: list[str]) -> JSON:
    """Return the spec fields that a pod template describes, without the command.

    Args:
        template: Metadata and spec of the pods.
        names: Names that the container of the ranks may have. Otherwise it is the first one.
        notes: List to which a sentence is added for each thing that the user should look at.
    """
    pod = dict(template.get("spec") or {})
    containers = [dict(one) for one in pod.pop("containers", None) or [{}]]
    worker = next((one for one in containers if one.get("name") in names), containers[0])
    beside = [one for one in containers if one is not worker]
    spec, overlay = _container(worker, notes)
    spec |= {name: pod.pop(name) for name in _OF_SPEC if pod.get(name)}
    if secrets := pod.pop("imagePullSecrets", None):
        spec["imagePullSecrets"] = [one["name"] for one in secrets]
    if pod.pop("hostNetwork", None):
        spec["network"] = {"hostNetwork": True}
        pod.pop("dnsPolicy", None)
        notes.append("hostNetwork: the installation must allow it (workers.hostPorts of the chart)")
    mounts = worker.get("volumeMounts") or []
    if other := _add_volumes(spec, overlay, pod.pop("volumes", None) or [], mounts):
        pod["volumes"] = other
    for name, why in _DROPPED.items():
        if pod.pop(name, None) and why:
            notes.append(f"{name} is left out, because {why}")
    if overlay:
        beside = [{"name": WORKER_CONTAINER, **overlay}, *beside]
    if beside:
        pod["containers"] = beside
    metadata = {
        key: dict(value)
        for key, value in (template.get("metadata") or {}).items()
        if key in {"labels", "annotations"} and value
    }
    parts = {"metadata": metadata, "spec": pod}
    if given := {name: part for name, part in parts.items() if part}:
        spec["podTemplate"] = given
        where = ", ".join(sorted(pod)) or "metadata"
        notes.append(f"podTemplate holds {where}: the installation decides which of it is allowed")
    return spec


def _container(worker: Mapping[str, Any], notes: list[str]) -> tuple[JSON, JSON]:
    """Return the spec fields of the ranks' container, and the fields that need podTemplate."""
    known = {"name", "command", "args", "volumeMounts", "resources", "image", "env", _PORTS}
    known.add("imagePullPolicy")
    spec: JSON = {
        name: worker[name] for name in ("image", "imagePullPolicy", "env") if worker.get(name)
    }
    resources = {
        kind: dict(values)
        for kind, values in (worker.get("resources") or {}).items()
        if isinstance(values, Mapping)
    }
    gpus = [values.pop(GPU) for values in resources.values() if GPU in values]
    if gpus:
        spec["gpusPerNode"] = int(gpus[0])
    if resources := {kind: values for kind, values in resources.items() if values}:
        spec["resources"] = resources
    if worker.get(_PORTS):
        notes.append("ports are left out, because torchrun's ports are those of the operator")
    return spec, {name: value for name, value in worker.items() if name not in known}


def _add_volumes(
    spec: JSON, overlay: JSON, volumes: Sequence[JSON], mounts: Sequence[JSON]
) -> list[JSON]:
    """Add volumes and mounts to the spec, and to the overlay the mounts that a spec cannot have.

    Returns:
        The volumes that a spec cannot have.
    """
    at = {one["name"]: one.get("mountPath") for one in mounts}
    plain: list[JSON] = []
    other: list[JSON] = []
    gone: set[str] = set()
    for volume in volumes:
        source = set(volume) - {"name"}
        if source == {"emptyDir"} and at.get(volume["name"]) == _SHARED_MEMORY:
            gone.add(volume["name"])
            if size := (volume["emptyDir"] or {}).get("sizeLimit"):
                spec["sharedMemory"] = size
        else:
            (plain if source <= _SOURCES else other).append(volume)
    names = {volume["name"] for volume in plain}
    mine = [one for one in mounts if one["name"] in names and _is_plain(one)]
    rest = [one for one in mounts if one not in mine and one["name"] not in gone]
    if plain:
        spec["volumes"] = plain
    if mine:
        spec["volumeMounts"] = mine
    if rest:
        overlay["volumeMounts"] = rest
    return other


def _is_plain(mount: Mapping[str, Any]) -> bool:
    return set(mount) <= {"name", "mountPath", "subPath", "readOnly"}
