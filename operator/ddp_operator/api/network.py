"""Define the models of `DDPJob.spec.network`."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StrictBool, StrictInt, StringConstraints

from ddp_operator.api.base import ApiModel


class NcclDebug(StrEnum):
    """Level of NCCL log messages."""

    VERSION = "Version"
    WARN = "Warn"
    INFO = "Info"
    TRACE = "Trace"


class NetworkProfile(StrEnum):
    """Type of network for which NCCL is configured."""

    ETHERNET = "Ethernet"
    INFINIBAND = "InfiniBand"
    ROCE = "RoCE"
    AWS_EFA = "AwsEfa"
    GCP_TCPX = "GcpTcpx"


class Rdma(ApiModel):
    """RDMA devices of each worker pod, for InfiniBand or RoCE."""

    resource: Annotated[
        str,
        StringConstraints(pattern=r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$", max_length=253),
    ]
    """Name of the resource that the device plugin offers, for example rdma/hca_shared_devices_a."""
    count: Annotated[StrictInt, Field(ge=1, le=64)] = 1
    """Number of devices in each pod, 1 to 64."""


class Network(ApiModel):
    """Network settings of the ranks."""

    interface: (
        Annotated[str, StringConstraints(pattern=r"^[\^=]?[A-Za-z0-9_.,-]+$", max_length=253)]
        | None
    ) = None
    """Network interface that NCCL and gloo use, for example eth0."""
    profile: NetworkProfile | None = None
    """Type of network: Ethernet, InfiniBand, RoCE, AwsEfa or GcpTcpx. The operator sets the environment variables that the vendor documents for this type. The other fields of network and a variable of the same name in spec.env take precedence. Without a profile, NCCL chooses the network."""  # noqa: E501
    nccl_debug: NcclDebug | None = None
    """Level of NCCL messages in the log: Version, Warn, Info or Trace."""
    rdma: Rdma | None = None
    """RDMA devices of each worker pod. The worker container then has the capability IPC_LOCK, which the Pod Security Standards allow only in privileged namespaces."""  # noqa: E501
    host_network: StrictBool = False
    """Run the pods on the network of their Kubernetes nodes, with ports that the operator allocates to the job. The installation must allow it with workers.hostPorts of the chart. NetworkPolicies do not apply to such pods, and the Pod Security Standards allow them only in privileged namespaces."""  # noqa: E501
