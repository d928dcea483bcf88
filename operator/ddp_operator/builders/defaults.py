"""Define the operator's defaults and limits for jobs, which come from its settings."""

from dataclasses import dataclass, field

from ddp_operator.api.pod_policy import ANNOTATIONS, PodTemplatePolicy
from ddp_operator.builders.gangs.versions import Gangs
from ddp_operator.builders.host_ports import PortRange
from ddp_operator.builders.network import PolicyPeer
from ddp_operator.builders.placement import GPU_PRODUCT_LABEL


@dataclass(frozen=True)
class Defaults:
    """The operator's defaults for spec fields that a job leaves out, and its limits for jobs."""

    image: str
    image_pull_policy: str = "IfNotPresent"
    log_format: str = "text"
    """Format of the agents' log lines: text or json."""
    user: int | None = 1000
    """User and group id of the worker process, or None if the cluster assigns them."""
    shared_memory: str | None = None
    """Size limit of /dev/shm, a Kubernetes quantity. None limits it by the pod's memory only."""
    agent_clients: tuple[PolicyPeer, ...] | None = None
    """Peers that a job's NetworkPolicy lets connect to the job's agents. With None the operator
    creates no policy."""
    pod_template: PodTemplatePolicy = PodTemplatePolicy.SCHEDULING
    """Policy that limits the podTemplate of a job."""
    annotations: tuple[str, ...] = ANNOTATIONS
    """Annotations that a job may set on its pods, see `allows_annotation`."""
    gpu_product_label: str = GPU_PRODUCT_LABEL
    """Label of Kubernetes nodes that `spec.gpuProduct` of a job refers to."""
    host_ports: PortRange | None = None
    """Ports for jobs with `network.hostNetwork`, or None if no job may use it."""
    gangs: Gangs = field(default_factory=Gangs)
    """Gang schedulers that jobs may use."""
    checkpoint_claims: bool = True
    """Whether jobs may have claims that the operator creates from `checkpoint.claimTemplate`."""
    pinned_image: str | None = None
    """Image by digest that other pods of the attempt already run, if any. It takes precedence over
    the job's image."""
