"""Settings of the operator, read from environment variables."""

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    Json,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from ddp_operator.api.base import Name
from ddp_operator.api.gang import GangType
from ddp_operator.api.pod_policy import ANNOTATIONS, PodTemplatePolicy
from ddp_operator.builders.host_ports import PortRange
from ddp_operator.builders.network import PolicyPeer
from ddp_operator.builders.placement import GPU_PRODUCT_LABEL
from ddp_operator.limits import STATUS_WRITES_PER_SECOND

PREFIX = "DDP_OPERATOR_"
ASSIGNED = "assigned"
"""Value of `worker_user` for a cluster that assigns the user ids of pods."""


class SettingsError(ValueError):
    """Error about a missing or invalid setting. The text is one sentence for the administrator."""


class Settings(BaseModel):
    """Settings of the operator. The environment variable of a field is DDP_OPERATOR_<NAME>."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    trainer_image: str
    """Image of the worker pods of jobs that set no image."""
    image_pull_policy: str = "IfNotPresent"
    """Image pull policy of jobs that set no policy."""
    worker_user: str = Field(default="1000", pattern=f"^([1-9][0-9]{{0,9}}|{ASSIGNED})$")
    """User and group id of the worker pods, or `assigned` if the cluster assigns them, as OpenShift
    does."""
    shared_memory: str | None = None
    """Default size limit of /dev/shm, a Kubernetes quantity, for example 16Gi."""
    gpu_product_label: str = Field(default=GPU_PRODUCT_LABEL, min_length=1, max_length=253)
    """Label of Kubernetes nodes that `spec.gpuProduct` of a job refers to."""
    host_ports: str | None = None
    """First and last port on all Kubernetes nodes for jobs with `network.hostNetwork`, for example
    20000-29999. Each job uses 66 of them. Without ports no job may use `network.hostNetwork`."""
    agent_clients: Json[tuple[PolicyPeer, ...]] | None = None
    """JSON list of the NetworkPolicy peers that may connect to agents: the operator's own pods and
    the scrapers of metrics. Without it the operator creates no NetworkPolicies."""
    pod_template: PodTemplatePolicy = PodTemplatePolicy.SCHEDULING
    """Policy that limits the podTemplate of a job: full, scheduling or off."""
    pod_template_annotations: tuple[str, ...] = ANNOTATIONS
    """Annotations that a job may set on its pods with the policy scheduling, separated by commas. A
    name that ends with * allows all annotations with this prefix."""
    checkpoint_claims: bool = False
    """Whether jobs may have claims that the operator creates from spec.checkpoint.claimTemplate,
    which needs rights to PersistentVolumeClaims."""
    finished_jobs: bool = False
    """Whether each namespace keeps a list of its finished jobs in a ConfigMap, which needs rights
    to this ConfigMap."""
    gang_types: tuple[GangType, ...] = ()
    """Gang schedulers that jobs may use, separated by commas: Native, Coscheduling, Volcano."""
    gang_default: GangType = GangType.NONE
    """Gang scheduler of jobs that select none: None, or one of the gang types."""
    gang_queue: Name | None = None
    """Volcano queue, or LocalQueue of Kueue, of jobs that set no queue."""
    coscheduling_scheduler: str | None = None
    """Name of the scheduler that runs the Coscheduling plugin. Default: the default scheduler."""
    namespaces: tuple[str, ...] = ()
    """Namespaces whose jobs the operator manages, separated by commas; empty for all namespaces."""
    watch_nodes: bool = False
    """Whether to watch the Kubernetes nodes, which needs the rights to list and watch them. If
    true, an elastic job leaves a cordoned or tainted Kubernetes node before the pod is evicted, and
    no job trains on two GPU products."""
    workers: int = Field(default=8, ge=1, le=256)
    """Number of workers, which is the number of jobs reconciled at the same time, 1 to 256. Half of
    the workers take only urgent jobs, for example with a failed pod, and no new jobs."""
    resync_seconds: int = Field(default=600, ge=10)
    """Seconds between two full relists, at least 10. A relist finds events that a watch missed."""
    status_writes_per_second: float = Field(default=STATUS_WRITES_PER_SECOND, ge=1)
    """Status writes per second of all jobs together that change no job's course, at least 1.
    Progress may use nine tenths of them. With many jobs, the progress of each is therefore written
    less often than every 5 s."""
    health_port: int = Field(default=8080, ge=1, le=65535)
    """TCP port of /healthz, /readyz and /metrics."""
    webhook_url: str | None = Field(default=None, pattern=r"^https?://[^/\s]+(/\S*)?$")
    """Address to which the operator sends a signed notification when a job completes, fails or has
    recovered, http or https. Without it the operator sends none."""
    webhook_key_file: Path | None = Field(default=None, validate_default=True)
    """File with the keys that sign notifications, one per line, in base64."""
    log_level: str = Field(default="INFO", pattern="^(DEBUG|INFO|WARNING|ERROR)$")
    """Lowest level that is logged: DEBUG, INFO, WARNING or ERROR."""
    log_format: str = Field(default="text", pattern="^(text|json)$")
    """Log format: text lines, or one JSON object per line."""
    identity: str = Field(default_factory=socket.gethostname, min_length=1)
    """Name of this replica in the Lease. The default is the host name, which is the pod's name."""
    leader_election: bool = True
    """Whether only the holder of the Lease reconciles jobs. Disable this only for a single
    replica."""
    lease_namespace: str | None = Field(default=None, validate_default=True)
    """Namespace of the Lease. The default is the operator's own namespace."""
    lease_name: str = Field(default="ddp-trainer-operator", min_length=1)
    """Name of the Lease."""
    lease_seconds: int = Field(default=15, ge=1)
    """Seconds after the last observed renewal before another replica may take the Lease."""
    renew_seconds: float = Field(default=10, gt=0)
    """Seconds without a renewal after which the leader exits."""
    retry_seconds: float = Field(default=2, gt=0)
    """Seconds between two attempts to acquire or renew the Lease."""

    @field_validator("namespaces", "pod_template_annotations", "gang_types", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return [part for part in value.split(",") if part] if isinstance(value, str) else value

    @field_validator("host_ports")
    @classmethod
    def _check_host_ports(cls, value: str | None) -> str | None:
        return value and str(PortRange.parse(value))

    @field_validator("gang_default")
    @classmethod
    def _check_gang_default(cls, value: GangType, info: ValidationInfo) -> GangType:
        if value is not GangType.NONE and value not in info.data.get("gang_types", ()):
            raise ValueError(f"must be None or a type that {PREFIX}GANG_TYPES lists")
        return value

    @field_validator("gang_types")
    @classmethod
    def _check_gang_types(cls, value: tuple[GangType, ...]) -> tuple[GangType, ...]:
        if GangType.NONE in value:
            raise ValueError("must not contain None, which each job may use")
        return value

    @field_validator("webhook_key_file")
    @classmethod
    def _check_key_file(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        if info.data.get("webhook_url") is not None and value is None:
            raise ValueError(f"must be set if {PREFIX}WEBHOOK_URL is set")
        return value

    @field_validator("lease_namespace")
    @classmethod
    def _check_lease_namespace(cls, value: str | None, info: ValidationInfo) -> str | None:
        if not info.data.get("leader_election", True):
            return None
        if value is None:
            raise ValueError(f"must be set unless {PREFIX}LEADER_ELECTION is false")
        return value

    @field_validator("renew_seconds", "retry_seconds")
    @classmethod
    def _check_order(cls, value: float, info: ValidationInfo) -> float:
        """Check retry < renew < lease.

        The leader must retry before it exits, and exit before another replica takes over.
        """
        longer = "lease_seconds" if info.field_name == "renew_seconds" else "renew_seconds"
        if value >= info.data.get(longer, float("inf")):
            raise ValueError(f"must be less than {PREFIX}{longer.upper()}")
        return value

    @property
    def port_range(self) -> PortRange | None:
        """Return the ports of `host_ports`, or None without ports."""
        return PortRange.parse(self.host_ports) if self.host_ports else None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> "Settings":
        """Read the settings from environment variables.

        Raises:
            SettingsError: A setting is missing or invalid.
        """
        given = os.environ if environment is None else environment
        values = {n: given[v] for n in cls.model_fields if given.get(v := PREFIX + n.upper())}
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            first = error.errors()[0]
            name = PREFIX + str(first["loc"][0]).upper()
            raise SettingsError(
                f"{name}: {first['msg']}, got {values.get(str(first['loc'][0]))!r}"
            ) from error
