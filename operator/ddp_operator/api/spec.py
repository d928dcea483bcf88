"""Define the models of `DDPJob.spec`. The operator acts on every field in them."""

import hashlib
import json
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any

from pydantic import Field, JsonValue, StrictBool, StrictInt, StringConstraints

from ddp_operator.api.base import LABEL, ApiModel, Name, Seconds
from ddp_operator.api.claim import ClaimTemplate
from ddp_operator.api.container import EnvVar, Quantity, RawObject, Resources, Text
from ddp_operator.api.elastic import Elastic
from ddp_operator.api.gang import Gang
from ddp_operator.api.init import ImportPath, InitStep
from ddp_operator.api.network import Network
from ddp_operator.api.placement import Topology
from ddp_wire.hang_limits import (
    HANG_CHECKPOINT_SECONDS,
    HANG_DATA_SECONDS,
    HANG_EVALUATION_SECONDS,
    HANG_EXIT_SECONDS,
    HANG_HOOK_SECONDS,
    HANG_START_SECONDS,
    HANG_STEP_SECONDS,
)

Count = Annotated[StrictInt, Field(ge=1, le=1_000_000)]
VolumeName = Annotated[str, StringConstraints(pattern=rf"^{LABEL}$", max_length=63)]
"""Name of a volume in a pod, a DNS label."""
_CONTROLLER = rf"^{LABEL}(\.{LABEL})*/[A-Za-z0-9/._~%!\$&'()*+,;=:-]+$"
"""Regular expression of a controller's name: a domain and a path, as in a batch/v1 Job."""
RESERVED_POD_FIELDS = ("hostname", "restartPolicy", "subdomain")
"""Pod fields on which restarts and the rendezvous depend. No podTemplate may set them."""
PodOverlay = Annotated[
    dict[str, JsonValue],
    Field(
        json_schema_extra={
            "x-kubernetes-preserve-unknown-fields": True,
            # A CEL rule sees declared fields only.
            "properties": {
                name: {"type": "string", "description": "Reserved: the operator sets this field."}
                for name in RESERVED_POD_FIELDS
            },
        }
    ),
]
"""Partial pod spec that the operator merges into the generated pod spec."""


class ImagePullPolicy(StrEnum):
    """Rule for when the kubelet pulls the image."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class CleanPodPolicy(StrEnum):
    """Rule for the pods of a finished job: keep or delete them."""

    NONE = "None"
    ALL = "All"


class Volume(ApiModel):
    """One volume of the worker pods: a name and one source, as in a pod."""

    name: VolumeName
    """Name of the volume, at most 63 characters. ddp-trainer reserves names that begin with ddp-."""  # noqa: E501
    persistent_volume_claim: RawObject | None = None
    """PersistentVolumeClaim in the job's namespace, as in a pod."""
    config_map: RawObject | None = None
    """ConfigMap in the job's namespace, as in a pod."""
    secret: RawObject | None = None
    """Secret in the job's namespace, as in a pod."""
    empty_dir: RawObject | None = None
    """Scratch directory that is deleted together with the pod, as in a pod."""


class VolumeMount(ApiModel):
    """Mount of one volume in the worker container."""

    name: VolumeName
    """Name of the volume, one of spec.volumes."""
    mount_path: Annotated[str, StringConstraints(pattern=r"^/[^:]*$", max_length=1024)]
    """Absolute path of the mount in the container."""
    sub_path: Annotated[str, StringConstraints(max_length=1024)] | None = None
    """Path inside the volume to mount. The default is the root of the volume."""
    read_only: StrictBool = False
    """Mount the volume without write access."""


class CheckpointSpec(ApiModel):
    """Location and interval of the checkpoints. Without checkpoints, each new attempt starts from the beginning."""  # noqa: E501

    claim_name: Name | None = None
    """PersistentVolumeClaim in the job's namespace that stores the checkpoints. All worker pods mount it, so it needs the access mode ReadWriteMany. A checkpoint sets either claimName or claimTemplate."""  # noqa: E501
    claim_template: ClaimTemplate | None = None
    """Template of a PersistentVolumeClaim NAME-checkpoints that the operator creates before the pods of the job."""  # noqa: E501
    path: (
        Annotated[
            str,
            StringConstraints(
                pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*$",
                max_length=512,
            ),
        ]
        | None
    ) = None
    """Directory of the run inside the claim. The default is unique: NAME-UID of the job. A later job with the same path continues the run of an earlier one. The later job waits until the earlier one has ended."""  # noqa: E501
    every_steps: Count | None = None
    """Number of updates (optimizer steps) between two checkpoints, 1 to 1,000,000. Without everySteps and everySeconds, the bundled loop saves after each epoch and every 30 to 3,600 seconds, which it chooses from the cost of a save and the failures of the job."""  # noqa: E501
    every_seconds: Seconds | None = None
    """Seconds between two checkpoints, 1 to 31,536,000 (one year)."""
    keep: Annotated[StrictInt, Field(ge=1, le=1000)] = 3
    """Number of newest checkpoints to keep, 1 to 1000. Older ones are deleted."""
    start_over: StrictBool = False
    """Train from the beginning if checkpoints exist but none of them is usable. The unusable checkpoints are moved to the folder set-aside-N in the run's directory. If false, the job fails instead."""  # noqa: E501


class Hang(ApiModel):
    """Limits after which an attempt in which no rank makes progress counts as hung. Then the operator names the rank for which the others wait, and starts a new attempt."""  # noqa: E501

    detect: StrictBool = True
    """Detect hangs. A task always reports its progress; a command must write heartbeats."""
    step_seconds: Seconds = HANG_STEP_SECONDS
    """Seconds without progress within an update, 1 to 31,536,000 (one year). If three times the 99th percentile of the update time is longer, that is the limit."""  # noqa: E501
    start_seconds: Seconds = HANG_START_SECONDS
    """Seconds from the start of an attempt to the end of its first update, 1 to 31,536,000 (one year). The first update may include compilation."""  # noqa: E501
    evaluation_seconds: Seconds = HANG_EVALUATION_SECONDS
    """Maximum seconds without progress in one batch of an evaluation, 1 to 31,536,000 (one year)."""  # noqa: E501
    checkpoint_seconds: Seconds = HANG_CHECKPOINT_SECONDS
    """Maximum seconds for one checkpoint, 1 to 31,536,000 (one year)."""
    data_seconds: Seconds = HANG_DATA_SECONDS
    """Maximum seconds that a rank may wait for its data while the other ranks wait for it, 1 to 31,536,000 (one year). Storage needs this time for retries and failover."""  # noqa: E501
    hook_seconds: Seconds = HANG_HOOK_SECONDS
    """Maximum seconds for one call of the task's after_update, 1 to 31,536,000 (one year)."""
    exit_seconds: Seconds = HANG_EXIT_SECONDS
    """Maximum seconds from the end of a rank's work to its exit, 1 to 31,536,000 (one year). After this time the agent kills the rank, an Event names the rank, and the work still counts. A rank of a command has ended its work when another rank has exited with code 0 and it uses no CPU."""  # noqa: E501


class PodTemplateMetadata(ApiModel):
    """Labels and annotations to add to the worker pods."""

    labels: (
        Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=64)] | None
    ) = None
    """Labels to add, for example the label that selects a queue."""
    annotations: Annotated[dict[str, Text], Field(max_length=64)] | None = None
    """Annotations to add."""


class PodTemplate(ApiModel):
    """Overlay on the generated worker pods, for settings that no other field covers."""

    metadata: PodTemplateMetadata | None = None
    """Labels and annotations to add to the worker pods."""
    spec: PodOverlay | None = None
    """Partial pod spec to merge into the generated one. Objects merge by key, and lists of named items merge by name. Any other value replaces the generated one. The podTemplate policy of the installation decides which fields a job may set."""  # noqa: E501


class DDPJobSpec(ApiModel):
    """Specification of a training run: its code, size, limits and placement."""

    nodes: Annotated[StrictInt, Field(ge=1, le=9999)] = 1
    """Number of worker pods, 1 to 9999. A change starts a new attempt of the new size from the newest checkpoint."""  # noqa: E501
    elastic: Elastic | None = None
    """Limits between which the job may change its size. Without limits, the job waits until it has all its nodes."""  # noqa: E501
    spares: Annotated[StrictInt, Field(ge=0, le=1000)] = 0
    """Number of further pods that wait with torch imported, 0 to 1000. One of them takes the place of a lost node at once. A spare holds its GPUs."""  # noqa: E501
    spare_priority_class_name: Name | None = None
    """Name of the PriorityClass of the spare pods, normally a lower one than that of the workers. In a job with elastic and a gang, the pods outside the gang have it, too. The default is priorityClassName."""  # noqa: E501
    procs_per_node: Annotated[StrictInt, Field(ge=1, le=1024)] | None = None
    """Number of ranks (training processes) in each pod, 1 to 1024. The default is gpusPerNode, or 1 for a job without GPUs."""  # noqa: E501
    gpus_per_node: Annotated[StrictInt, Field(ge=0, le=1024)] = 0
    """Number of GPUs (nvidia.com/gpu) in each pod, 0 to 1024."""

    task: ImportPath | None = None
    """Import path of the function that builds the training task, for example my_package.flowers:build. The bundled training loop trains it. A job sets either task or command."""  # noqa: E501
    config: RawObject | None = None
    """Settings of the bundled training loop and of the task, for example epochs: 20. A job with a command takes args instead."""  # noqa: E501
    command: Annotated[list[Text], Field(min_length=1, max_length=64)] | None = None
    """Command that each rank runs instead of the bundled training loop, for example [python, /app/train.py]. torchrun starts it and sets RANK, WORLD_SIZE and its other variables."""  # noqa: E501
    args: Annotated[list[Text], Field(max_length=256)] | None = None
    """Arguments of the command. A job with a task takes config instead."""

    image: Annotated[str, StringConstraints(min_length=1, max_length=1024)] | None = None
    """Container image of the worker pods. The default is the trainer image in the operator's settings. The image must contain Python, torch and the ddp-trainer package."""  # noqa: E501
    image_pull_policy: ImagePullPolicy | None = None
    """Rule for when the kubelet pulls the image: Always, IfNotPresent or Never. The default is the policy in the operator's settings."""  # noqa: E501
    image_pull_secrets: Annotated[list[Name], Field(max_length=16)] | None = None
    """Names of the Secrets with credentials for the image registry."""
    env: (
        Annotated[
            list[EnvVar],
            Field(
                max_length=256,
                json_schema_extra={
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"],
                },
            ),
        ]
        | None
    ) = None
    """Environment variables of the worker container, which all its ranks inherit."""
    resources: Resources | None = None
    """Compute resources of each worker pod, except GPUs."""
    shared_memory: Quantity | None = None
    """Size limit of /dev/shm, a quantity as text or a number of bytes, for example 16Gi. Its content counts as memory of the pod. The default is the limit in the operator's settings. Without one, the limit is that of the pod's memory."""  # noqa: E501
    volumes: (
        Annotated[
            list[Volume],
            Field(
                max_length=64,
                json_schema_extra={
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"],
                },
            ),
        ]
        | None
    ) = None
    """Volumes of the worker pods, for example for data and code."""
    volume_mounts: Annotated[list[VolumeMount], Field(max_length=64)] | None = None
    """Mounts of the volumes in the worker container."""
    pod_template: PodTemplate | None = None
    """Overlay on the generated worker pods, for settings that no other field covers."""

    init: (
        Annotated[
            list[InitStep],
            Field(
                min_length=1,
                max_length=16,
                json_schema_extra={
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"],
                },
            ),
        ]
        | None
    ) = None
    """Steps that run once, one after another, before the ranks of the first attempt, for example a download of data. Each step runs in one pod with the volumes of the worker pods. A changed list runs again from its first step."""  # noqa: E501

    node_selector: (
        Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=64)] | None
    ) = None
    """Labels that a Kubernetes node must have to run worker pods."""
    tolerations: Annotated[list[RawObject], Field(max_length=64)] | None = None
    """Taints of Kubernetes nodes that the worker pods tolerate, as in a pod."""
    topology: Topology | None = None
    """Packing of all worker pods into one domain of Kubernetes nodes, for example one rack or zone."""  # noqa: E501
    gpu_product: Annotated[str, StringConstraints(min_length=1, max_length=63)] | None = None
    """GPU model for all worker pods, for example NVIDIA-H100-80GB-HBM3: a value of the label nvidia.com/gpu.product of Kubernetes nodes. The operator's settings may name another label. The job waits while no node with this model has room."""  # noqa: E501
    exclusive_nodes: StrictBool = False
    """Place each worker pod on a Kubernetes node that runs no other pod of any DDPJob in any namespace. The job waits while too few nodes are free."""  # noqa: E501
    priority_class_name: Name | None = None
    """Name of the PriorityClass of the worker pods."""
    gang: Gang | None = None
    """Gang scheduling: all worker pods get a Kubernetes node together, or none does. With elastic, the gang has the first minNodes pods. The default is the gang type in the operator's settings."""  # noqa: E501
    network: Network | None = None
    """Network settings of the ranks."""

    checkpoint: CheckpointSpec | None = None
    """Location and interval of the checkpoints. Without checkpoints, each new attempt starts from the beginning."""  # noqa: E501
    hang: Hang | None = None
    """Limits after which an attempt in which no rank makes progress counts as hung."""
    standby: StrictBool | None = None
    """Fork each attempt from a process that has already imported torch, so that a restart takes one or two seconds. The default is true. A command that is not a Python script always starts without this process, and so does a pod whose GPUs do not work in forked processes."""  # noqa: E501

    managed_by: (
        Annotated[str, StringConstraints(pattern=_CONTROLLER, min_length=1, max_length=63)] | None
    ) = None
    """Controller that manages the job, as in a batch/v1 Job: this operator (ddp-trainer.dev/operator, the default) or another controller. This operator ignores a job of another controller. The field cannot be changed."""  # noqa: E501
    suspend: StrictBool = False
    """Stop the run and release its resources. After a change back to false, the run continues from the newest checkpoint."""  # noqa: E501
    max_restarts: Annotated[StrictInt, Field(ge=0, le=10000)] = 3
    """Maximum number of restarts after application failures, 0 to 10,000. One more failure fails the job."""  # noqa: E501
    restart_window_seconds: Seconds | None = None
    """Length of the time window for maxRestarts, in seconds, 1 to 31,536,000 (one year). Only application failures in the window count. Without it, all of them count."""  # noqa: E501
    max_infrastructure_restarts: Annotated[StrictInt, Field(ge=0, le=10000)] = 50
    """Maximum number of restarts after losses of pods, Kubernetes nodes or volumes, 0 to 10,000. One more loss fails the job."""  # noqa: E501
    startup_deadline_seconds: Seconds | None = None
    """Seconds that each attempt may take until all its ranks are in the process group, 1 to 31,536,000 (one year). A longer start fails the job. Time while a scheduling gate, a queue or a quota holds the pods does not count. Time while the pods wait for a Kubernetes node with room counts."""  # noqa: E501
    active_deadline_seconds: Seconds | None = None
    """Seconds that the job may run, from its start or its last resumption, 1 to 31,536,000 (one year). A longer run fails the job. Time while a scheduling gate, a queue or a quota holds the pods does not count."""  # noqa: E501
    ttl_seconds_after_finished: Annotated[StrictInt, Field(ge=0, le=31_536_000)] | None = None
    """Seconds after which the operator deletes a finished job, 0 to 31,536,000 (one year). Without a value, the job is kept."""  # noqa: E501
    clean_pod_policy: CleanPodPolicy = CleanPodPolicy.NONE
    """Rule for the pods of a finished job. None ends the pods and keeps them for their logs; All deletes them."""  # noqa: E501

    @cached_property
    def shaping_hash(self) -> str:
        """Return a 16-digit hash of the spec fields that affect the pods, see `pod_shaping`."""
        text = json.dumps(pod_shaping(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def may_leave_nodes_out(self) -> bool:
        """Return whether some nodes of the job may be left out of an attempt."""
        return self.elastic is not None or self.spares > 0

    @property
    def uses_host_network(self) -> bool:
        """Return whether the pods use the network and the ports of their Kubernetes nodes."""
        return self.network is not None and self.network.host_network

    @property
    def uses_standby(self) -> bool:
        """Return whether attempts fork from a standby, which is the default."""
        return self.standby is not False

    @property
    def ranks_per_node(self) -> int:
        """Return the number of ranks in each pod, with the default of `procs_per_node`."""
        return self.procs_per_node or self.gpus_per_node or 1


_NOT_POD_SHAPING = {
    "managed_by",
    "suspend",
    "max_restarts",
    "restart_window_seconds",
    "max_infrastructure_restarts",
    "startup_deadline_seconds",
    "active_deadline_seconds",
    "ttl_seconds_after_finished",
    "clean_pod_policy",
}


def pod_shaping(spec: DDPJobSpec) -> dict[str, Any]:
    """Return the spec fields that affect the pods, without fields at their default.

    The result depends only on the user's input. Therefore running jobs keep their pods when a new
    version of the operator builds pods differently.
    """
    shaping: dict[str, Any] = spec.model_dump(
        mode="json", by_alias=True, exclude=_NOT_POD_SHAPING, exclude_defaults=True
    )
    if spec.checkpoint is not None and spec.checkpoint.claim_template is not None:
        shaping["checkpoint"]["claimTemplate"] = True  # The pods name only the claim.
    if spec.elastic is not None:
        shaping.pop("nodes", None)  # Pods of an elastic job serve at any size.
        shaping["elastic"] = True
    if spec.spares:
        shaping["spares"] = True  # Any number of them, because their pods differ in the index only.
    return shaping
