"""The worker pod satisfies the Restricted profile of the Pod Security Standards.

Each control of https://kubernetes.io/docs/concepts/security/pod-security-standards/ has one check.
"""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ddp_operator.builders.pod import build_pod
from tests.operator.support import DEFAULTS, new_job

Pod = dict[str, Any]

VOLUME_TYPES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}


def _containers(pod: Pod) -> list[dict[str, Any]]:
    kinds = ("initContainers", "containers", "ephemeralContainers")
    return [c for kind in kinds for c in pod["spec"].get(kind, [])]


def _contexts(pod: Pod) -> list[dict[str, Any]]:
    return [c.get("securityContext", {}) for c in _containers(pod)]


def _effective(pod: Pod, field: str) -> list[Any]:
    """Return a field of each container's security context, or else of the pod's."""
    common = pod["spec"].get("securityContext", {}).get(field)
    return [context.get(field, common) for context in _contexts(pod)]


def restricted_violations(pod: Pod) -> set[str]:
    """Return the names of the controls that a pod violates."""
    spec = pod["spec"]
    capabilities = [c.get("capabilities", {}) for c in _contexts(pod)]
    profiles = _effective(pod, "seccompProfile")
    ports = [p for c in _containers(pod) for p in c.get("ports", [])]
    sources = [set(v) - {"name"} for v in spec.get("volumes", [])]
    broken = {
        "host namespaces": any(spec.get(k) for k in ("hostNetwork", "hostPID", "hostIPC")),
        "privileged": any(c.get("privileged") for c in _contexts(pod)),
        "capabilities dropped": any(c.get("drop") != ["ALL"] for c in capabilities),
        "capabilities added": any(
            set(c.get("add", [])) - {"NET_BIND_SERVICE"} for c in capabilities
        ),
        "volume types": any(not source <= VOLUME_TYPES for source in sources),
        "host ports": any(p.get("hostPort") for p in ports),
        "privilege escalation": any(
            c.get("allowPrivilegeEscalation") is not False for c in _contexts(pod)
        ),
        "run as non-root": any(v is not True for v in _effective(pod, "runAsNonRoot")),
        "run as user": 0 in _effective(pod, "runAsUser"),
        "seccomp": any(
            (p or {}).get("type") not in {"RuntimeDefault", "Localhost"} for p in profiles
        ),
        "proc mount": any(c.get("procMount", "Default") != "Default" for c in _contexts(pod)),
        "sysctls": bool(spec.get("securityContext", {}).get("sysctls")),
    }
    return {name for name, found in broken.items() if found}


def plain() -> Pod:
    return build_pod(new_job(), 0, 1, DEFAULTS)


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"gpusPerNode": 8},
        {"command": ["python", "a.py"], "checkpoint": {"claimName": "c"}},
        {
            "volumes": [{"name": "data", "configMap": {"name": "c"}}],
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        },
    ],
    ids=["plain", "GPUs", "command with checkpoint", "volumes"],
)
def test_worker_pod_satisfies_the_restricted_profile(spec: dict[str, Any]) -> None:
    assert restricted_violations(build_pod(new_job(**spec), 0, 1, DEFAULTS)) == set()


def test_worker_pod_has_no_api_token_and_no_service_links() -> None:
    spec = plain()["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert "serviceAccountName" not in spec


def test_pod_with_rdma_devices_adds_only_the_capability_to_lock_memory() -> None:
    job = new_job(network={"rdma": {"resource": "rdma/hca"}})
    pod = build_pod(job, 0, 1, DEFAULTS)
    assert restricted_violations(pod) == {"capabilities added"}
    assert _contexts(pod)[0]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}


def test_pod_sets_no_user_id_if_the_cluster_assigns_it() -> None:
    pod = build_pod(new_job(), 0, 1, replace(DEFAULTS, user=None))
    assert restricted_violations(pod) == set()
    assert not {"runAsUser", "runAsGroup", "fsGroup"} & pod["spec"]["securityContext"].keys()


def test_worker_has_a_read_only_root_filesystem() -> None:
    assert [c["readOnlyRootFilesystem"] for c in _contexts(plain())] == [True]


VIOLATIONS: dict[str, Callable[[Pod], Any]] = {
    "host namespaces": lambda p: p["spec"].update(hostNetwork=True),
    "privileged": lambda p: _contexts(p)[0].update(privileged=True),
    "capabilities dropped": lambda p: _contexts(p)[0].update(capabilities={}),
    "capabilities added": lambda p: _contexts(p)[0]["capabilities"].update(add=["SYS_ADMIN"]),
    "volume types": lambda p: p["spec"]["volumes"].append({"name": "h", "hostPath": {}}),
    "host ports": lambda p: _containers(p)[0]["ports"].append({"hostPort": 80}),
    "privilege escalation": lambda p: _contexts(p)[0].pop("allowPrivilegeEscalation"),
    "run as non-root": lambda p: p["spec"]["securityContext"].pop("runAsNonRoot"),
    "run as user": lambda p: p["spec"]["securityContext"].update(runAsUser=0),
    "seccomp": lambda p: p["spec"]["securityContext"].pop("seccompProfile"),
    "proc mount": lambda p: _contexts(p)[0].update(procMount="Unmasked"),
    "sysctls": lambda p: p["spec"]["securityContext"].update(sysctls=[{"name": "a"}]),
}


@pytest.mark.parametrize(("control", "violate"), VIOLATIONS.items(), ids=VIOLATIONS.keys())
def test_security_check_finds_a_pod_that_violates_a_control(
    control: str, violate: Callable[[Pod], Any]
) -> None:
    pod = copy.deepcopy(plain())
    violate(pod)
    assert restricted_violations(pod) == {control}
