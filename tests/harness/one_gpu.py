"""Let several ranks share one GPU under NCCL, so that a machine with one GPU tests more ranks.

NCCL refuses two ranks on one GPU of one host. A rank whose variable `NCCL_HOSTID` differs counts as
one on another host, and NCCL then connects it over sockets.
"""

import torch


def share_one_gpu(host: str) -> dict[str, str]:
    """Return the variables of a rank on a host of this name, or none if each rank has a GPU."""
    if torch.cuda.device_count() != 1:
        return {}
    return {
        "CUDA_VISIBLE_DEVICES": "0",
        "NCCL_HOSTID": host,
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_IB_DISABLE": "1",
    }
