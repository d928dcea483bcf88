"""Objects of a job with one changed field, and whether the operator can build such an object."""

import copy
import random
from collections.abc import Iterator, Mapping
from typing import Any

from ddp_operator.api.job import InvalidJobError, parse_job
from ddp_operator.api.pod_policy import PodTemplatePolicy, forbidden_field
from ddp_operator.builders.defaults import Defaults
from ddp_operator.builders.pod import build_pod
from ddp_wire import contract
from ddp_wire.orders import order_from_text

JSON = dict[str, Any]
Path = tuple[str | int, ...]

_VALUES: tuple[Any, ...] = (
    True,
    False,
    0,
    1,
    65535,
    "other",
    "Always",
    "ALL",
    [],
    {},
    ["NET_ADMIN"],
)
_SOURCES: Mapping[str, Any] = {
    "hostPath": {"path": "/"},
    "nfs": {"server": "s", "path": "/"},
    "csi": {"driver": "secrets-store.csi.k8s.io"},
    "flexVolume": {"driver": "x/y"},
    "gitRepo": {"repository": "https://example.com/x"},
    "iscsi": {"targetPortal": "1.2.3.4", "iqn": "iqn.2001-04.com.example:a", "lun": 0},
    "image": {"reference": "x"},
    "ephemeral": {
        "volumeClaimTemplate": {
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}},
            }
        }
    },
    "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]},
    "configMap": {"name": "theirs"},
    "secret": {"secretName": "theirs"},
    "emptyDir": {},
    "persistentVolumeClaim": {"claimName": "theirs"},
    "downwardAPI": {"items": [{"path": "a", "fieldRef": {"fieldPath": "metadata.name"}}]},
}
_ROOT = {"runAsUser": 0, "runAsNonRoot": False, "seccompProfile": {"type": "Unconfined"}}
_DROPS = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
_PROBE = {"httpGet": {"host": "10.0.0.1", "port": 80}}
ADDED: Mapping[str, Mapping[str, Any]] = {
    "metadata": {
        "generateName": "a-",
        "finalizers": ["example.com/keep"],
    },
    "annotations": {
        "k8s.v1.cni.cncf.io/networks": "kube-system/host",
        "cni.projectcalico.org/ipAddrs": '["10.0.0.1"]',
        "io.katacontainers.config.hypervisor.path": "/bin/sh",
        "io.kubernetes.cri-o.userns-mode": "auto",
        "container.apparmor.security.beta.kubernetes.io/worker": "unconfined",
        "karpenter.sh/do-not-disrupt": "true",
        "prometheus.io/port": "1",
        "note": "b",
    },
    "pod": {
        "hostNetwork": True,
        "hostPID": True,
        "hostIPC": True,
        "hostUsers": True,
        "shareProcessNamespace": True,
        "nodeName": "node-1",
        "serviceAccountName": "admin",
        "serviceAccount": "admin",
        "priorityClassName": "system-node-critical",
        "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["kubernetes.default.svc"]}],
        "dnsPolicy": "Default",
        "setHostnameAsFQDN": True,
        "activeDeadlineSeconds": 5,
        "readinessGates": [{"conditionType": "a.example/b"}],
        "resourceClaims": [{"name": "c", "resourceClaimName": "admin"}],
        "os": {"name": "linux"},
        "schedulerName": "volcano",
        "nodeSelector": {"node-role.kubernetes.io/control-plane": ""},
        "imagePullSecrets": [{"name": "theirs"}],
        "initContainers": [
            {
                "name": "i",
                "image": "i",
                "securityContext": {"capabilities": {"add": ["SYS_MODULE"]}},
            }
        ],
    },
    "podSecurity": {
        "sysctls": [{"name": "kernel.shm_rmid_forced", "value": "0"}],
        "windowsOptions": {"hostProcess": True},
        "seLinuxOptions": {"type": "spc_t"},
        "appArmorProfile": {"type": "Unconfined"},
        "supplementalGroups": [0],
        "supplementalGroupsPolicy": "Strict",
    },
    "container": {
        "livenessProbe": _PROBE,
        "startupProbe": _PROBE,
        "lifecycle": {"preStop": {"httpGet": {"host": "10.0.0.1", "port": 80}}},
        "stdin": True,
        "tty": True,
        "volumeDevices": [{"name": "ddp-tmp", "devicePath": "/dev/a"}],
        "workingDir": "/",
        "envFrom": [{"secretRef": {"name": "theirs"}}],
        "args": ["x"],
    },
    "context": {
        "privileged": True,
        "procMount": "Unmasked",
        "seLinuxOptions": {"type": "spc_t"},
        "windowsOptions": {"hostProcess": True},
        "appArmorProfile": {"type": "Unconfined"},
        "capabilities": {"add": ["SYS_ADMIN"]},
        **_ROOT,
    },
    "service": {
        "externalIPs": ["10.96.0.10"],
        "type": "LoadBalancer",
        "externalName": "evil.example",
        "loadBalancerIP": "10.0.0.1",
        "sessionAffinity": "ClientIP",
        "trafficDistribution": "PreferClose",
        "internalTrafficPolicy": "Local",
    },
    "networkpolicy": {"egress": [{}], "policyTypes": ["Ingress", "Egress"], "podSelector": {}},
}
"""Fields to add, by the part of an object that they belong to."""


def changed(manifest: JSON, path: Path, value: Any = None, *, removed: bool = False) -> JSON:
    """Return a manifest with one value set or removed. A missing parent is created."""
    out = copy.deepcopy(manifest)
    place: Any = out
    for key in path[:-1]:
        place = place.setdefault(key, {}) if isinstance(place, dict) else place[key]
    if removed:
        del place[path[-1]]
    elif isinstance(place, list) and path[-1] == len(place):
        place.append(value)
    else:
        place[path[-1]] = value
    return out


def named_mutations(kind: str, manifest: JSON) -> Iterator[tuple[str, JSON]]:
    """Yield an object with each of the fields of `ADDED` that belong to it."""
    places: list[tuple[str, Path]] = [("metadata", ("metadata",))]
    places.append(("annotations", ("metadata", "annotations")))
    if kind == "pods":
        worker: Path = ("spec", "containers", 0)
        places += [
            ("pod", ("spec",)),
            ("podSecurity", ("spec", "securityContext")),
            ("container", worker),
            ("context", (*worker, "securityContext")),
        ]
        last = len(manifest["spec"]["volumes"])
        for name, source in _SOURCES.items():
            volume = {"name": "v", name: source}
            yield f"volume {name}", changed(manifest, ("spec", "volumes", last), volume)
            hidden = {"name": "ddp-tmp", name: source}
            yield f"ddp-tmp {name}", changed(manifest, ("spec", "volumes", 1), hidden)
        sidecar = {"name": "s", "image": "i"}
        for context in ({}, _DROPS, _DROPS | _ROOT, {"privileged": True}):
            container = {**sidecar, "securityContext": context}
            yield f"sidecar {context}", changed(manifest, ("spec", "containers", 1), container)
        port = {"containerPort": 1, "hostPort": 10250}
        yield "hostPort", changed(manifest, (*worker, "ports"), [port])
        locks = {"drop": ["ALL"], "add": ["IPC_LOCK"]}
        yield "IPC_LOCK", changed(manifest, (*worker, "securityContext", "capabilities"), locks)
    else:
        places.append((kind.removesuffix("s").replace("ie", "y"), ("spec",)))
    for part, place in places:
        for key, value in ADDED[part].items():
            yield f"{part}.{key}", changed(manifest, (*place, key), value)


def random_mutations(manifest: JSON, count: int, seed: int) -> Iterator[tuple[str, JSON]]:
    """Yield objects with one value that is removed or replaced, chosen at random."""
    chosen = random.Random(seed)  # noqa: S311 (no secret)
    paths = [path for path in _paths(manifest) if path[0] in {"metadata", "spec"}]
    for _ in range(count):
        path = chosen.choice(paths)
        if chosen.random() < 0.4:
            yield f"{path} removed", changed(manifest, path, removed=True)
            continue
        value = chosen.choice(_VALUES)
        yield f"{path} = {value!r}", changed(manifest, path, value)


def _paths(value: Any, path: Path = ()) -> Iterator[Path]:
    keys = list(value) if isinstance(value, dict) else range(len(value))
    for key in keys:
        yield (*path, key)
        if isinstance(value[key], dict | list):
            yield from _paths(value[key], (*path, key))


_CHOSEN_BY_JOB = {
    "affinity",
    "imagePullSecrets",
    "nodeSelector",
    "priorityClassName",
    "runtimeClassName",
    "schedulerName",
    "terminationGracePeriodSeconds",
    "tolerations",
    "topologySpreadConstraints",
}
_CHOSEN_IN_CONTAINERS = {
    "env",
    "envFrom",
    "image",
    "imagePullPolicy",
    "ports",
    "resources",
    "terminationMessagePath",
    "terminationMessagePolicy",
    "volumeMounts",
    "workingDir",
}


def producible(job: JSON, pod: JSON, defaults: Defaults) -> bool:
    """Return whether some job that the podTemplate policy `scheduling` allows has such a pod.

    Try the job whose overlay asks for the differences. Fields that carry no power beyond a job's
    choice are not compared, because an overlay adds to them and takes nothing away.
    """
    asked, pod = copy.deepcopy(job), copy.deepcopy(pod)
    spec: JSON = asked["spec"]
    try:
        pod["spec"]["containers"][0]["livenessProbe"].setdefault(
            "periodSeconds", 10
        )  # The default.
        spec["podTemplate"] = _overlay(build_pod(parse_job(job), 0, 1, defaults), pod)
        spec["volumes"] = [
            v for v in pod["spec"]["volumes"] if not v.get("name", "").startswith("ddp-")
        ]
        worker = pod["spec"]["containers"][0]
        if "IPC_LOCK" in worker["securityContext"]["capabilities"].get("add", []):
            spec["network"] = {"rdma": {"resource": "rdma/a"}}
        parsed = parse_job(asked)
        if forbidden_field(parsed.spec, PodTemplatePolicy.SCHEDULING, defaults.annotations):
            return False
        return _essence(build_pod(parsed, 0, 1, defaults)) == _essence(pod)
    except (InvalidJobError, KeyError, TypeError, AttributeError, ValueError):
        return False


def _overlay(base: JSON, pod: JSON) -> JSON:
    """Return the podTemplate that asks for what differs from a generated pod."""
    metadata = {
        part: {
            key: value
            for key, value in pod["metadata"].get(part, {}).items()
            if base["metadata"][part].get(key) != value
        }
        for part in ("labels", "annotations")
    }
    fields = {
        key: value
        for key, value in pod["spec"].items()
        if key not in {"containers", "volumes", "imagePullSecrets"}
        and base["spec"].get(key) != value
    }
    own = {c["name"]: c for c in base["spec"]["containers"]}
    containers = []
    for container in pod["spec"]["containers"]:
        generated = own.get(container["name"], {})
        differs = {k: v for k, v in container.items() if generated.get(k) != v}
        context = differs.get("securityContext")
        if isinstance(context, dict) and container["name"] == contract.WORKER_CONTAINER:
            capabilities = context.get("capabilities")
            if isinstance(capabilities, dict) and capabilities.get("add") == ["IPC_LOCK"]:
                differs.pop("securityContext")
        if differs:
            containers.append({"name": container["name"], **differs})
    return {
        "metadata": metadata,
        "spec": fields | ({"containers": containers} if containers else {}),
    }


def _essence(pod: JSON) -> JSON:
    """Return a pod without the fields that a job chooses, in a canonical form."""
    out = copy.deepcopy(pod)
    metadata, spec = out["metadata"], out["spec"]
    metadata["annotations"] = {
        key: value
        for key, value in metadata["annotations"].items()
        if not key.startswith("prometheus.io/")
        and key != contract.ANNOTATION_SPEC_HASH
        and not (key == contract.ANNOTATION_ATTEMPT and order_from_text(value))
    }
    for owner in metadata["ownerReferences"]:
        owner.setdefault("blockOwnerDeletion", False)
    for key in _CHOSEN_BY_JOB:
        spec.pop(key, None)
    for volume in spec["volumes"]:
        _complete_volume(volume)
    for container in [*spec["containers"], *spec.get("initContainers", [])]:
        for key in _CHOSEN_IN_CONTAINERS:
            container.pop(key, None)
        if container["name"] != contract.WORKER_CONTAINER:
            container.pop("command", None)
            container.pop("args", None)
        context = container["securityContext"]
        if not context.get("privileged"):
            context.pop("privileged", None)
        if not context.get("readOnlyRootFilesystem"):
            context.pop("readOnlyRootFilesystem", None)
    return out


def _complete_volume(volume: JSON) -> None:
    """Set the source that the API server chooses, and any claim in place of the job's."""
    if set(volume) == {"name"}:
        volume["emptyDir"] = {}
    if volume["name"] == "ddp-checkpoint" and "claimName" in volume["persistentVolumeClaim"]:
        volume["persistentVolumeClaim"]["claimName"] = "any"
