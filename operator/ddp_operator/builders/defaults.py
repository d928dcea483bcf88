"""Values of the installation."""

from dataclasses import dataclass, field

from ddp_operator.api.pod_policy import ANNOTATIONS, PodTemplatePolicy
from ddp_operator.builders.gangs.versions import Gangs
from ddp_operator.builders.network import PolicyPeer
from ddp_operator.builders.placement import GPU_PRODUCT_LABEL


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
    gpu_product_label: str = GPU_PRODUCT_LABEL
    """Label of Kubernetes nodes whose value `spec.gpuProduct` of a job names."""
    gangs: Gangs = field(default_factory=Gangs)
    """Gang schedulers that jobs may use."""
    pinned_image: str | None = None
    """The image by digest, if the other pods of the attempt run it. It precedes the job's image."""
