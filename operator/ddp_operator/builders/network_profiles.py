"""Environment variables of the network profiles (`spec.network.profile`).

A profile has only variables that the vendor of the network documents, with the value that the
vendor documents. Values that differ from site to site are not part of a profile, for example a GID
index. docs/use/network-profiles.md lists all variables, and a test compares it with this table.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ddp_operator.api.network import NetworkProfile

_NCCL = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
_EFA = "https://github.com/aws/aws-ofi-nccl/blob/master/doc/efa-env-var.md"
_TCPX = (
    "https://github.com/GoogleCloudPlatform/container-engine-accelerators/blob/"
    "21ed6613d6bd40d90bbd0362982cfe24bea4191a/gpudirect-tcpx/nccl-config.yaml"
)


@dataclass(frozen=True)
class Profile:
    """Environment variables of one network profile."""

    variables: Mapping[str, str]
    source: str
    """URL of the vendor's page that documents these variables."""


PROFILES: Final[Mapping[NetworkProfile, Profile]] = {
    # NCCL_NET makes NCCL fail instead of falling back to another network. NCCL_IB_DISABLE would do
    # the same for Ethernet, but NVIDIA advises against it outside of debugging.
    NetworkProfile.ETHERNET: Profile({"NCCL_NET": "Socket"}, _NCCL),
    NetworkProfile.INFINIBAND: Profile({"NCCL_NET": "IB"}, _NCCL),
    # NCCL uses its network IB for RoCE, too. Only version 2 of RoCE can cross routers.
    NetworkProfile.ROCE: Profile({"NCCL_NET": "IB", "NCCL_IB_ROCE_VERSION_NUM": "2"}, _NCCL),
    # Forks of data loaders may fail while libfabric uses huge pages. FI_EFA_USE_DEVICE_RDMA is
    # missing, because AWS advises against it since libfabric 1.18 with aws-ofi-nccl 1.7.
    NetworkProfile.AWS_EFA: Profile({"FI_PROVIDER": "efa", "FI_EFA_USE_HUGE_PAGE": "0"}, _EFA),
    # For a3-highgpu-8g: the interfaces and CPU cores are those of that machine.
    NetworkProfile.GCP_TCPX: Profile(
        {
            "NCCL_SOCKET_IFNAME": "eth0",
            "NCCL_DYNAMIC_CHUNK_SIZE": "524288",
            "NCCL_P2P_NET_CHUNKSIZE": "524288",
            "NCCL_P2P_PCI_CHUNKSIZE": "524288",
            "NCCL_P2P_NVL_CHUNKSIZE": "1048576",
            "NCCL_GPUDIRECTTCPX_TX_BINDINGS": (
                "eth1:8-21,112-125;eth2:8-21,112-125;eth3:60-73,164-177;eth4:60-73,164-177"
            ),
            "NCCL_GPUDIRECTTCPX_RX_BINDINGS": (
                "eth1:22-35,126-139;eth2:22-35,126-139;eth3:74-87,178-191;eth4:74-87,178-191"
            ),
            "NCCL_NSOCKS_PERTHREAD": "4",
            "NCCL_SOCKET_NTHREADS": "1",
            "NCCL_BUFFSIZE": "4194304",
            "NCCL_GPUDIRECTTCPX_SOCKET_IFNAME": "eth1,eth2,eth3,eth4",
            "NCCL_GPUDIRECTTCPX_CTRL_DEV": "eth0",
            "NCCL_GPUDIRECTTCPX_PROGRAM_FLOW_STEERING_WAIT_MICROS": "500000",
            "NCCL_CROSS_NIC": "0",
            "NCCL_ALGO": "Ring",
            "NCCL_PROTO": "Simple",
            "NCCL_NET_GDR_LEVEL": "PIX",
            "NCCL_P2P_PXN_LEVEL": "0",
        },
        _TCPX,
    ),
}
"""Profiles by their name in `spec.network.profile`."""
