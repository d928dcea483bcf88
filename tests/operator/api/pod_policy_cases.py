"""Specs that each podTemplate policy refuses, with the named field, and specs that it allows."""

from typing import Any

from tests.operator.api.placement_cases import PLACED, PLACED_WITH_TEMPLATE

JSON = dict[str, Any]


def pod(**fields: Any) -> JSON:
    """Return a spec whose overlay sets fields of the pod spec."""
    return {"podTemplate": {"spec": fields}}


def container(**fields: Any) -> JSON:
    """Return a spec whose overlay adds a container."""
    return pod(containers=[{"name": "proxy", "image": "proxy:1", **fields}])


def context(**fields: Any) -> JSON:
    """Return a spec whose overlay adds a container with a security context."""
    return container(securityContext=fields)


def worker(**fields: Any) -> JSON:
    """Return a spec whose overlay changes the security context of the worker container."""
    return pod(containers=[{"name": "worker", "securityContext": fields}])


_HOST_PATH = [{"name": "root", "hostPath": {"path": "/"}}]
_TOKEN = [{"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]
_PROBE = {"httpGet": {"host": "10.0.0.1", "port": 80}}
_CONTEXT = "containers.securityContext"

REFUSED: dict[str, tuple[JSON, str]] = {
    **{
        f"{field}={value}": (pod(**{field: value}), field)
        for field, value in (
            ("hostNetwork", True),
            ("hostPID", True),
            ("hostIPC", True),
            ("hostUsers", True),
            ("hostAliases", [{"ip": "10.0.0.1", "hostnames": ["kubernetes.default.svc"]}]),
            ("shareProcessNamespace", True),
            ("serviceAccountName", "admin"),
            ("serviceAccount", "admin"),
            ("automountServiceAccountToken", True),
            ("nodeName", "node-1"),
            ("securityContext", {"runAsUser": 0}),
            ("dnsPolicy", "ClusterFirstWithHostNet"),
            ("priority", 2_000_001_000),
            ("ephemeralContainers", []),
        )
    },
    "hostPath": (pod(volumes=_HOST_PATH), "volumes"),
    "token of a ServiceAccount": (pod(volumes=_TOKEN), "volumes"),
    "system priority": (pod(priorityClassName="system-node-critical"), "priorityClassName"),
    "privileged": (context(privileged=True), f"{_CONTEXT}.privileged"),
    "privileged init container": (
        pod(initContainers=[{"name": "i", "securityContext": {"privileged": True}}]),
        f"{_CONTEXT}.privileged",
    ),
    "privilege escalation": (
        context(allowPrivilegeEscalation=True),
        f"{_CONTEXT}.allowPrivilegeEscalation",
    ),
    "null takes the default from the worker": (
        worker(allowPrivilegeEscalation=None),
        f"{_CONTEXT}.allowPrivilegeEscalation",
    ),
    "capability": (context(capabilities={"add": ["SYS_ADMIN"]}), f"{_CONTEXT}.capabilities"),
    "worker that drops no capability": (
        worker(capabilities={"drop": []}),
        f"{_CONTEXT}.capabilities",
    ),
    "root": (context(runAsUser=0), f"{_CONTEXT}.runAsUser"),
    "root allowed": (context(runAsNonRoot=False), f"{_CONTEXT}.runAsNonRoot"),
    "seccomp off": (
        context(seccompProfile={"type": "Unconfined"}),
        f"{_CONTEXT}.seccompProfile",
    ),
    "AppArmor off": (
        context(appArmorProfile={"type": "Unconfined"}),
        f"{_CONTEXT}.appArmorProfile",
    ),
    "procMount": (context(procMount="Unmasked"), f"{_CONTEXT}.procMount"),
    "SELinux": (context(seLinuxOptions={"level": "s0"}), f"{_CONTEXT}.seLinuxOptions"),
    "host port": (
        container(ports=[{"containerPort": 1, "hostPort": 1}]),
        "containers.ports.hostPort",
    ),
    "probe of a host": (container(livenessProbe=_PROBE), "containers.livenessProbe"),
    "hook": (container(lifecycle={"preStop": _PROBE}), "containers.lifecycle"),
    "block device": (container(volumeDevices=[]), "containers.volumeDevices"),
}
"""Specs that `scheduling` refuses. The named field is below spec.podTemplate.spec."""

ELSEWHERE: dict[str, tuple[JSON, str]] = {
    "system priority": (
        {"priorityClassName": "system-cluster-critical"},
        "spec.priorityClassName: must not begin with system-",
    ),
    **{
        f"annotation {key}": (
            {"podTemplate": {"metadata": {"annotations": {key: "a"}}}},
            f"spec.podTemplate.metadata.annotations[{key}]: must be one of podTemplateAnnotations",
        )
        for key in (
            "container.apparmor.security.beta.kubernetes.io/worker",
            "k8s.v1.cni.cncf.io/networks",
            "cni.projectcalico.org/ipAddrs",
            "io.kubernetes.cri-o.userns-mode",
            "io.katacontainers.config.hypervisor.path",
            "sidecar.istio.io/inject",
            "vault.hashicorp.com/agent-inject",
            "kueue.x-k8s.io.evil.example/a",
        )
    },
}
"""Specs that `scheduling` refuses for a field outside of the pod spec, with the message's start."""

ALLOWED: dict[str, JSON] = {
    "nothing": {},
    "metadata": {
        "podTemplate": {"metadata": {"labels": {"queue": "a"}, "annotations": {"n": "b"}}}
    },
    "annotations of the chart": {
        "podTemplate": {
            "metadata": {
                "annotations": {
                    "karpenter.sh/do-not-disrupt": "true",
                    "kueue.x-k8s.io/podset-required-topology": "rack",
                    "prometheus.io/scrape": "false",
                }
            }
        }
    },
    "placement": pod(
        affinity={"nodeAffinity": {}},
        nodeSelector={"pool": "gpu"},
        tolerations=[{"operator": "Exists"}],
        topologySpreadConstraints=[],
        priorityClassName="high",
        schedulerName="volcano",
        runtimeClassName="nvidia",
        terminationGracePeriodSeconds=600,
    ),
    "containers": pod(
        containers=[
            {
                "name": "proxy",
                "image": "proxy:1",
                "ports": [{"name": "http", "containerPort": 80}],
                "env": [{"name": "A", "value": "b"}],
                "volumeMounts": [{"name": "ddp-tmp", "mountPath": "/tmp"}],
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "appArmorProfile": {"type": "RuntimeDefault"},
                    "capabilities": {"drop": ["ALL"]},
                    "privileged": False,
                    "readOnlyRootFilesystem": True,
                    "runAsGroup": 0,
                    "runAsNonRoot": True,
                    "runAsUser": 1000,
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
            }
        ],
        initContainers=[{"name": "fetch", "image": "fetch:1", "restartPolicy": "Always"}],
    ),
    "priority": {"priorityClassName": "high"},
    **PLACED,
    **PLACED_WITH_TEMPLATE,
}
"""Specs that `scheduling` allows. `off` allows those without a podTemplate."""
