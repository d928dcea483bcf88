"""Build the worker pod.

The pod is built in three steps. The first one derives a complete pod from the job's spec and the
defaults of the installation. The second one merges the podTemplate of the job into it. The third
one restores what the overlay must not change: the labels and annotations by which the operator
finds its pods, the command and variables of the agent, and restricted security contexts. Without a
podTemplate only the first step is needed.

The result depends on the job, the node's index and the attempt alone. Secrets are added when the
pod is created (`with_secrets`), so that a plan does not contain them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ddp_operator.api.job import DDPJob
from ddp_operator.api.pod_policy import ANNOTATIONS, PodTemplatePolicy
from ddp_operator.api.spec import Rdma
from ddp_operator.builders import names
from ddp_operator.builders.affinity import avoided_nodes, with_terms
from ddp_operator.builders.env import build_env
from ddp_operator.builders.network import PolicyPeer
from ddp_operator.builders.overlay import apply_overlay, are_objects
from ddp_wire import contract

GPU_RESOURCE = "nvidia.com/gpu"
LOST_NODE_SECONDS = 5
"""Seconds that a pod stays bound to a Kubernetes node after the node is marked as lost."""
_RESERVED = "DDP_"
"""Prefix of the variables of the agent."""
_GRACE_SECONDS = 60
"""Seconds between SIGTERM and SIGKILL, in which the ranks save a checkpoint."""
_KUBERNETES_GRACE_SECONDS = 30
"""Grace period of a pod whose overlay removes it: the default of Kubernetes."""
_LAST_WORDS = "FallbackToLogsOnError"
"""Termination message of containers: the end of their log, for the job's status."""
_SCRATCH = {"ddp-tmp": "/tmp", "ddp-shm": "/dev/shm"}  # noqa: S108 (paths inside the container)
"""Volumes for scratch directories, with their paths. A mount of the job there replaces them."""
_DNS_OPTIONS = [{"name": "timeout", "value": "1"}, {"name": "attempts", "value": "5"}]
"""Resolver timeout of 1 s per lost answer. The default of 5 s lasts as long as a recovery."""


@dataclass(frozen=True)
class Defaults:
    """Values of the installation for fields that a job leaves out."""

    image: str
    image_pull_policy: str = "IfNotPresent"
    log_format: str = "text"
    """Format of the agents' log lines: text or json."""
    user: int | None = 1000
    """User and group id of the worker process, or None if the cluster assigns them."""
    shared_memory: str | None = None
    """Size limit of /dev/shm, a Kubernetes quantity. None limits it by the pod's memory only."""
    agent_clients: tuple[PolicyPeer, ...] | None = None
    """Peers that the NetworkPolicy of a job lets connect to its agents. None for no policy."""
    pod_template: PodTemplatePolicy = PodTemplatePolicy.SCHEDULING
    """How much of a worker pod a job may set."""
    annotations: tuple[str, ...] = ANNOTATIONS
    """Annotations that a job may set on its pods, see `allows_annotation`."""
    pinned_image: str | None = None
    """The image by digest, if the other pods of the attempt run it. It precedes the job's image."""


_SCRAPED = {
    "prometheus.io/scrape": "true",
    "prometheus.io/port": str(contract.AGENT_PORT),
    "prometheus.io/path": "/metrics",
}
"""Annotations by which a common configuration of Prometheus finds the metrics of a pod."""


def build_pod(job: DDPJob, index: int, attempt: int, defaults: Defaults) -> dict[str, Any]:
    """Return the pod of node `index`, which starts with `attempt`.

    The pod satisfies the Restricted profile of the Pod Security Standards.
    """
    fixed = {
        contract.ANNOTATION_ATTEMPT: str(attempt),
        contract.ANNOTATION_FIRST_ATTEMPT: str(attempt),
        contract.ANNOTATION_SPEC_HASH: job.spec_hash,
    }
    pod: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": names.pod_name(job, index),
            "namespace": job.metadata.namespace,
            "labels": {**names.labels(job), contract.LABEL_NODE_INDEX: str(index)},
            "annotations": _SCRAPED | fixed,
            "ownerReferences": [names.owner_reference(job)],
        },
        "spec": _pod_spec(job, index, defaults),
    }
    template = job.spec.pod_template
    if template is None:
        return _with_grace(_with_affinity(pod, job))
    overlay = template.model_dump(by_alias=True, exclude_none=True)
    merged: dict[str, Any] = apply_overlay(pod, overlay)
    # The overlay cannot change these labels and annotations: the operator finds its pods by them.
    tolerations = merged["spec"].get("tolerations") or []
    if are_objects(tolerations):
        merged["spec"]["tolerations"] = _tolerations(tolerations)
    merged["metadata"]["labels"] |= pod["metadata"]["labels"]
    merged["metadata"]["annotations"] |= fixed
    for kind in ("containers", "initContainers"):
        if are_objects(merged["spec"].get(kind)):
            merged["spec"][kind] = [
                {"terminationMessagePolicy": _LAST_WORDS, **_restricted(item)}
                for item in merged["spec"][kind]
            ]
    if are_objects(merged["spec"].get("containers")):
        (worker,) = pod["spec"]["containers"]
        merged["spec"]["containers"] = [
            _with_agent(item, worker) if item.get("name") == worker["name"] else item
            for item in merged["spec"]["containers"]
        ]
    return _with_grace(_with_affinity(merged, job))


def _with_affinity(pod: dict[str, Any], job: DDPJob) -> dict[str, Any]:
    """Return the pod with all terms that the operator adds to its affinity, if there are any."""
    affinity = with_terms(pod["spec"].get("affinity"), avoided_nodes(job.status.strikes))
    return pod if affinity is None else {**pod, "spec": {**pod["spec"], "affinity": affinity}}


def _with_agent(container: dict[str, Any], worker: dict[str, Any]) -> dict[str, Any]:
    """Return the worker container with the agent's own command and variables.

    The overlay cannot change them: the operator could not follow the pod without its agent.
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
    """Return a container of the overlay without the privileges that Kubernetes grants by default.

    A container that asks for privileges keeps what it states, because the API server refuses
    contradictions.
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
        job_secret: Secret of all pods of the job, for messages between agents. "" for none.
    """
    pod = _with_variable(pod, contract.Env.AGENT_SECRET, secret)
    return _with_variable(pod, contract.Env.JOB_SECRET, job_secret)


def _with_grace(pod: dict[str, Any]) -> dict[str, Any]:
    """Return the pod with its grace period in the environment: the agent divides it."""
    seconds = pod["spec"]["terminationGracePeriodSeconds"]
    seconds = _KUBERNETES_GRACE_SECONDS if seconds is None else seconds
    return _with_variable(pod, contract.Env.GRACE_SECONDS, str(seconds))


def _with_variable(pod: dict[str, Any], name: contract.Env, value: str) -> dict[str, Any]:
    """Return the pod with a variable of the worker container that no other one overrides."""
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


def _pod_spec(job: DDPJob, index: int, defaults: Defaults) -> dict[str, Any]:
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
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": names.pod_selector(job)},
            }
        ],
        "containers": [_container(job, index, defaults)],
        "volumes": _volumes(job, defaults),
        "nodeSelector": spec.node_selector,
        "tolerations": _tolerations(spec.tolerations or []),
        "priorityClassName": spec.priority_class_name,
        "imagePullSecrets": [{"name": name} for name in spec.image_pull_secrets or []],
    }
    return {key: value for key, value in out.items() if value is not None and value != []}


def _pod_security(defaults: Defaults) -> dict[str, Any]:
    """Return the security context of the pod: the user id, unless the cluster assigns one."""
    user = defaults.user
    ids = {} if user is None else {"runAsUser": user, "runAsGroup": user, "fsGroup": user}
    return {
        "runAsNonRoot": True,
        **ids,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _tolerations(given: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return these tolerations, and 5 s for a lost node instead of Kubernetes' 300 s."""
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
    spec = job.spec
    policy = spec.image_pull_policy
    return {
        "name": contract.WORKER_CONTAINER,
        "image": defaults.pinned_image or spec.image or defaults.image,
        "imagePullPolicy": policy.value if policy else defaults.image_pull_policy,
        # -P: no module of the user's working directory may replace one of the agent.
        "command": ["python3", "-P", "-m", "ddp_agent"],
        "env": build_env(job, index, defaults.log_format),
        "ports": [
            {"name": "agent", "containerPort": contract.AGENT_PORT},
            {"name": "barrier", "containerPort": contract.BARRIER_PORT},
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
        "terminationMessagePolicy": _LAST_WORDS,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": _capabilities(job),
        },
    }


def _capabilities(job: DDPJob) -> dict[str, list[str]]:
    """Return the capabilities: none, except that RDMA locks the memory of its buffers."""
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
    if job.spec.checkpoint is not None:
        claim = {"claimName": job.spec.checkpoint.claim_name}
        volumes.append({"name": "ddp-checkpoint", "persistentVolumeClaim": claim})
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
    """Return the paths of scratch directories for which the job has mounts of its own."""
    return {m.mount_path.rstrip("/") for m in job.spec.volume_mounts or []} & set(_SCRATCH.values())
