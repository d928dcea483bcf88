"""Build the spec of a worker pod from the job's spec and the defaults of the installation."""

from collections.abc import Sequence
from typing import Any

from ddp_operator.api.job import DDPJob
from ddp_operator.api.network import Rdma
from ddp_operator.api.placement import HOSTNAME_LABEL, TopologyMode
from ddp_operator.builders import names
from ddp_operator.builders.defaults import Defaults
from ddp_operator.builders.env import build_env
from ddp_operator.builders.gangs.schedulers import recorded_gang
from ddp_operator.builders.host_ports import ports_of
from ddp_wire import contract

GPU_RESOURCE = "nvidia.com/gpu"
LOST_NODE_SECONDS = 5
"""Seconds after which Kubernetes evicts a pod from a node that is not ready or not reachable."""
_GRACE_SECONDS = 60
"""Seconds between SIGTERM and SIGKILL, in which the ranks save a checkpoint."""
LAST_WORDS = "FallbackToLogsOnError"
"""Policy that takes a container's termination message from the end of its log, for the job's
status."""
_SCRATCH = {"ddp-tmp": "/tmp", "ddp-shm": "/dev/shm"}  # noqa: S108 (paths inside the container)
"""Volumes for scratch directories, with their paths. A job's own mount at the same path replaces
the volume."""
_WEAK_SKEW = 1000
"""Skew with which the preference for nodes with few pods is weaker than a preferred topology. The
scheduler's score of a node with `n` more pods falls by about `n` divided by the skew."""
_DNS_OPTIONS = [{"name": "timeout", "value": "1"}, {"name": "attempts", "value": "5"}]
"""DNS options that resend a lost query after 1 s. The default of 5 s is as long as a whole
recovery."""


def build_pod_spec(job: DDPJob, index: int, defaults: Defaults) -> dict[str, Any]:
    """Return the spec of the pod of node `index`, before the podTemplate is merged."""
    spec = job.spec
    out: dict[str, Any] = {
        "hostname": names.hostname(job, index),
        "subdomain": names.service_name(job),
        "dnsConfig": {"options": _DNS_OPTIONS},
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": _GRACE_SECONDS,
        "securityContext": _pod_security(defaults),
        "topologySpreadConstraints": [_spread(job)],
        "containers": [_container(job, index, defaults)],
        "volumes": _volumes(job, defaults),
        "nodeSelector": spec.node_selector,
        "tolerations": with_lost_nodes(spec.tolerations or []),
        "priorityClassName": _priority_class(job, index),
        "imagePullSecrets": [{"name": name} for name in spec.image_pull_secrets or []],
    }
    if spec.uses_host_network:
        # With the default policy the pods would ask the node's DNS servers, which know no pods.
        out |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    return {key: value for key, value in out.items() if value is not None and value != []}


def _spread(job: DDPJob) -> dict[str, Any]:
    """Return the preference for Kubernetes nodes that run few pods of the job.

    It also switches off the scheduler's own preference for several zones.
    """
    topology = job.spec.topology
    packed = topology is not None and topology.mode is TopologyMode.PREFERRED
    return {
        "maxSkew": _WEAK_SKEW if packed else 1,
        "topologyKey": HOSTNAME_LABEL,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": names.pod_selector(job)},
    }


def _priority_class(job: DDPJob, index: int) -> str | None:
    """Return the PriorityClass of a pod. Spares may have their own, and all pods outside a gang.

    The pods of a gang have one priority: no gang scheduler documents what happens otherwise.
    """
    spec, gang = job.spec, recorded_gang(job)
    size = job.nodes if gang is None else gang.size
    own = spec.spare_priority_class_name if index >= size else None
    return own or spec.priority_class_name


def _pod_security(defaults: Defaults) -> dict[str, Any]:
    """Return the pod's security context, with a user id unless the cluster assigns it."""
    user = defaults.user
    ids = {} if user is None else {"runAsUser": user, "runAsGroup": user, "fsGroup": user}
    return {
        "runAsNonRoot": True,
        **ids,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def with_lost_nodes(given: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the tolerations, with 5 s for a lost node in place of Kubernetes' default of 300 s."""
    keys = [t.get("key") for t in given]
    return [
        *given,
        *(
            {
                "key": key,
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": LOST_NODE_SECONDS,
            }
            for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
            # A toleration without a key tolerates every taint.
            if key not in keys and None not in keys
        ),
    ]


def _container(job: DDPJob, index: int, defaults: Defaults) -> dict[str, Any]:
    spec, ports = job.spec, ports_of(job)
    policy = spec.image_pull_policy
    return {
        "name": contract.WORKER_CONTAINER,
        "image": defaults.pinned_image or spec.image or defaults.image,
        "imagePullPolicy": policy.value if policy else defaults.image_pull_policy,
        # -P: no module of the user's working directory may replace one of the agent.
        "command": ["python3", "-P", "-m", "ddp_agent"],
        "env": build_env(job, index, defaults.log_format),
        "ports": [
            {"name": "agent", "containerPort": ports.agent},
            {"name": "barrier", "containerPort": ports.barrier},
        ],
        "resources": _resources(job),
        "volumeMounts": _mounts(job),
        # The period limits the delay until the API server shows a lost rank.
        "readinessProbe": {
            "httpGet": {"path": "/readyz", "port": "agent"},
            "periodSeconds": 1,
            "timeoutSeconds": 2,
            "failureThreshold": 1,
        },
        "livenessProbe": {
            "httpGet": {"path": "/healthz", "port": "agent"},
            "periodSeconds": 10,
            "timeoutSeconds": 5,
            "failureThreshold": 6,
        },
        # An image without the agent, for example, shows its error in the job's status.
        "terminationMessagePolicy": LAST_WORDS,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": _capabilities(job),
        },
    }


def _capabilities(job: DDPJob) -> dict[str, list[str]]:
    """Return the container's capabilities: none, or IPC_LOCK for RDMA, which locks its buffers."""
    added = {"add": ["IPC_LOCK"]} if _rdma(job) else {}
    return {"drop": ["ALL"], **added}


def _rdma(job: DDPJob) -> Rdma | None:
    return job.spec.network.rdma if job.spec.network else None


def _resources(job: DDPJob) -> dict[str, Any]:
    given = job.spec.resources
    out = given.model_dump(by_alias=True, exclude_none=True) if given else {}
    devices = {GPU_RESOURCE: job.spec.gpus_per_node} if job.spec.gpus_per_node else {}
    if rdma := _rdma(job):
        devices[rdma.resource] = rdma.count
    if devices:
        out["limits"] = {**out.get("limits", {}), **devices}
    return out


def _volumes(job: DDPJob, defaults: Defaults) -> list[dict[str, Any]]:
    size = job.spec.shared_memory or defaults.shared_memory
    limit = {"sizeLimit": size} if size else {}
    attempt = f"metadata.annotations['{contract.ANNOTATION_ATTEMPT}']"
    items = [{"path": contract.ATTEMPT_FILE, "fieldRef": {"fieldPath": attempt}}]
    volumes: list[dict[str, Any]] = [
        {"name": "ddp-pod-info", "downwardAPI": {"items": items}},
        {"name": "ddp-tmp", "emptyDir": {}},
        # The default of 64 MiB is too small for data loaders and NCCL's shared memory transport.
        {"name": "ddp-shm", "emptyDir": {"medium": "Memory", **limit}},
    ]
    if (claim := names.claim_name(job)) is not None:
        source = {"claimName": claim}
        volumes.append({"name": "ddp-checkpoint", "persistentVolumeClaim": source})
    replaced = _replaced_mounts(job)
    volumes = [v for v in volumes if _SCRATCH.get(v["name"]) not in replaced]
    given = job.spec.volumes or []
    return volumes + [v.model_dump(by_alias=True, exclude_none=True) for v in given]


def _mounts(job: DDPJob) -> list[dict[str, Any]]:
    mounts: list[dict[str, Any]] = [
        {"name": "ddp-pod-info", "mountPath": contract.POD_INFO_DIR, "readOnly": True},
        *({"name": name, "mountPath": path} for name, path in _SCRATCH.items()),
    ]
    if job.spec.checkpoint is not None:
        mounts.append({"name": "ddp-checkpoint", "mountPath": contract.CHECKPOINT_MOUNT})
    given = job.spec.volume_mounts or []
    replaced = _replaced_mounts(job)
    mounts = [mount for mount in mounts if mount["mountPath"] not in replaced]
    return mounts + [m.model_dump(by_alias=True, exclude_none=True) for m in given]


def _replaced_mounts(job: DDPJob) -> set[str]:
    """Return the paths of the scratch directories at which the job mounts its own volume."""
    return {m.mount_path.rstrip("/") for m in job.spec.volume_mounts or []} & set(_SCRATCH.values())
