"""`DDPJob.spec`: every field has an effect; what the operator does not act on is not here."""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, JsonValue, StrictBool, StrictInt, StringConstraints

from ddp_operator.api.base import ApiModel

Count = Annotated[StrictInt, Field(ge=1, le=1_000_000)]
Seconds = Annotated[StrictInt, Field(ge=1, le=31_536_000)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=253)]
Text = Annotated[str, StringConstraints(max_length=4096)]
FreeObject = Annotated[
    dict[str, JsonValue], Field(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})
]
"""An object that is passed on as it is."""
_QUANTITY = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)
Quantity = Annotated[
    StrictInt | Annotated[str, StringConstraints(pattern=_QUANTITY)],
    Field(json_schema_extra={"x-kubernetes-int-or-string": True, "pattern": _QUANTITY}),
]
"""A Kubernetes quantity, as 500m or 2Gi."""


class ImagePullPolicy(StrEnum):
    """When the kubelet pulls the image."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class CleanPodPolicy(StrEnum):
    """What happens to the pods of a finished job."""

    NONE = "None"
    ALL = "All"


class NcclDebug(StrEnum):
    """How much NCCL says."""

    VERSION = "Version"
    WARN = "Warn"
    INFO = "Info"
    TRACE = "Trace"


class EnvVar(ApiModel):
    """One environment variable of the ranks."""

    name: Annotated[str, StringConstraints(pattern=r"^[-._a-zA-Z][-._a-zA-Z0-9]*$", max_length=253)]
    """Name of the variable. Names that begin with DDP_ belong to ddp-trainer."""
    value: Annotated[str, StringConstraints(max_length=32768)] | None = None
    """Its value."""
    value_from: FreeObject | None = None
    """Source of its value, as in a pod: configMapKeyRef, secretKeyRef, fieldRef or resourceFieldRef."""  # noqa: E501


class Resources(ApiModel):
    """Compute resources of one worker pod, GPUs aside."""

    requests: Annotated[dict[str, Quantity], Field(max_length=16)] | None = None
    """What the scheduler sets aside, as cpu: 4, memory: 16Gi."""
    limits: Annotated[dict[str, Quantity], Field(max_length=16)] | None = None
    """What the pod may use at most."""


class Volume(ApiModel):
    """A volume of the worker pods: its name, and one source as in a pod."""

    name: Annotated[
        str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)
    ]
    """Name of the volume. Names that begin with ddp- belong to ddp-trainer."""
    persistent_volume_claim: FreeObject | None = None
    """A claim in the job's namespace."""
    config_map: FreeObject | None = None
    """A ConfigMap in the job's namespace."""
    secret: FreeObject | None = None
    """A Secret in the job's namespace."""
    empty_dir: FreeObject | None = None
    """Scratch space that lives as long as the pod."""


class VolumeMount(ApiModel):
    """Where a volume appears in the worker container."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=63)]
    """Name of the volume."""
    mount_path: Annotated[str, StringConstraints(pattern=r"^/[^:]*$", max_length=1024)]
    """Absolute path in the container."""
    sub_path: Annotated[str, StringConstraints(max_length=1024)] | None = None
    """Path within the volume."""
    read_only: StrictBool = False
    """Mount without the right to write."""


class Checkpoint(ApiModel):
    """Where and how often the run is saved. Without it, a new attempt starts from the beginning."""

    claim_name: Name
    """A PersistentVolumeClaim in the job's namespace that all nodes can mount (ReadWriteMany)."""
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
    """Directory of this run within the claim; by default one of its own, named after the job and its uid. Two jobs that state the same path continue one run, one after the other."""  # noqa: E501
    every_steps: Count | None = None
    """Save each time this many updates are done."""
    every_seconds: Seconds | None = None
    """Save when this many seconds have passed since the last save."""
    keep: Annotated[StrictInt, Field(ge=1, le=1000)] = 3
    """How many of the newest checkpoints are kept."""


class Network(ApiModel):
    """How the ranks talk to each other."""

    interface: (
        Annotated[str, StringConstraints(pattern=r"^[\^=]?[A-Za-z0-9_.,-]+$", max_length=253)]
        | None
    ) = None
    """Network interface for NCCL and gloo, as eth0."""
    nccl_debug: NcclDebug | None = None
    """How much NCCL writes to the log."""


class PodTemplateMetadata(ApiModel):
    """Labels and annotations added to the worker pods."""

    labels: (
        Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=64)] | None
    ) = None
    """Labels, as for a queue."""
    annotations: Annotated[dict[str, Text], Field(max_length=64)] | None = None
    """Annotations."""


class PodTemplate(ApiModel):
    """An overlay for the worker pods, for everything that has no field of its own."""

    metadata: PodTemplateMetadata | None = None
    """Labels and annotations to add."""
    spec: FreeObject | None = None
    """Part of a pod spec, laid over the generated one: objects are merged, lists of named things are merged by name, other values replace."""  # noqa: E501


class DDPJobSpec(ApiModel):
    """What to run, how large, for how long, and where."""

    nodes: Annotated[StrictInt, Field(ge=1, le=9999)] = 1
    """Number of worker pods. Changing it starts a new attempt of that size from the newest checkpoint."""  # noqa: E501
    procs_per_node: Annotated[StrictInt, Field(ge=1, le=1024)] | None = None
    """Ranks per pod. Follows gpusPerNode when that is set, else 1."""
    gpus_per_node: Annotated[StrictInt, Field(ge=0, le=1024)] = 0
    """GPUs per pod (nvidia.com/gpu)."""

    task: (
        Annotated[
            str,
            StringConstraints(
                pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*$",
                max_length=512,
            ),
        ]
        | None
    ) = None
    """Import path of the function that builds the training task, as my_package.flowers:build. The bundled loop trains it."""  # noqa: E501
    config: FreeObject | None = None
    """Settings of the bundled loop and of the task, as epochs: 20."""
    command: Annotated[list[Text], Field(min_length=1, max_length=64)] | None = None
    """What each rank runs in place of the bundled loop, as [python, /app/train.py]. torchrun starts it with RANK, WORLD_SIZE and the rest set."""  # noqa: E501
    args: Annotated[list[Text], Field(max_length=256)] | None = None
    """Arguments of the command."""

    image: Annotated[str, StringConstraints(min_length=1, max_length=1024)] | None = None
    """Container image; by default the trainer image of this release. It needs Python, torch and the ddp-trainer package."""  # noqa: E501
    image_pull_policy: ImagePullPolicy | None = None
    """When the image is pulled."""
    image_pull_secrets: Annotated[list[Name], Field(max_length=16)] | None = None
    """Names of Secrets with registry credentials."""
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
    """Environment variables of the ranks."""
    resources: Resources | None = None
    """CPU and memory of each pod."""
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
    """Volumes for data and code."""
    volume_mounts: Annotated[list[VolumeMount], Field(max_length=64)] | None = None
    """Where the volumes appear."""
    pod_template: PodTemplate | None = None
    """Overlay for the rest of the pod."""

    node_selector: (
        Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=64)] | None
    ) = None
    """Labels that a node must have."""
    tolerations: Annotated[list[FreeObject], Field(max_length=64)] | None = None
    """Taints that the pods tolerate, as in a pod."""
    priority_class_name: Name | None = None
    """PriorityClass of the pods."""
    network: Network | None = None
    """How the ranks talk to each other."""

    checkpoint: Checkpoint | None = None
    """Where and how often the run is saved."""
    standby: StrictBool | None = None
    """Fork each attempt from a process that has imported torch already, so that a restart takes a second or two. By default on for jobs without GPUs. Commands that are no Python script start without it."""  # noqa: E501

    suspend: StrictBool = False
    """Stop the run and give its resources back; false continues it from the newest checkpoint."""
    max_restarts: Annotated[StrictInt, Field(ge=0, le=10000)] = 3
    """How many attempts that the application failed may be followed by another one."""
    restart_window_seconds: Seconds | None = None
    """Only failures of the application within this time count against maxRestarts."""
    max_infrastructure_restarts: Annotated[StrictInt, Field(ge=0, le=10000)] = 50
    """How many attempts that were lost with a pod or a node may be followed by another one."""
    startup_deadline_seconds: Seconds | None = None
    """Fail the job when an attempt does not train within this time."""
    active_deadline_seconds: Seconds | None = None
    """Fail the job when it has been active for this long."""
    ttl_seconds_after_finished: Annotated[StrictInt, Field(ge=0, le=31_536_000)] | None = None
    """Delete the job this long after it finished."""
    clean_pod_policy: CleanPodPolicy = CleanPodPolicy.NONE
    """Pods of a finished job: None ends them and keeps them for their logs, All deletes them."""

    @property
    def uses_standby(self) -> bool:
        """Whether attempts are forked: where a job asks for GPUs, only when it says so."""
        return self.gpus_per_node == 0 if self.standby is None else self.standby

    @property
    def ranks_per_node(self) -> int:
        """Ranks in each pod, by the rule of `procs_per_node`."""
        return self.procs_per_node or self.gpus_per_node or 1


_NOT_POD_SHAPING = {
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
    """The part of a spec that the pods are made of, without defaults.

    It depends on what the user wrote alone, so that a new version of the operator, which may
    build pods differently, leaves running jobs as they are.
    """
    return spec.model_dump(
        mode="json", by_alias=True, exclude=_NOT_POD_SHAPING, exclude_defaults=True
    )
