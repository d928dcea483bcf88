"""The device and the process group of this rank."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from ddp_trainer.config import Device
from ddp_trainer.errors import InputError
from ddp_trainer.ranks import nccl_log
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.ranks.reach import infiniband_devices, interface_to, require_reach


def choose_device(wanted: Device, ranks: Ranks) -> torch.device:
    """This rank's device: one GPU each, or the CPU.

    A container that shows each rank only its own GPU numbers it 0 whatever the local rank.

    Raises:
        InputError: If CUDA is wanted and missing, or there are more ranks than GPUs.
    """
    if wanted == "cpu":
        return torch.device("cpu")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        if wanted == "cuda":
            raise InputError("config: device is cuda, but there is no CUDA device here")
        return torch.device("cpu")
    if count > 1 and ranks.local_rank >= count:
        raise InputError(
            f"config: {ranks.local_world_size} ranks on this node need as many GPUs, not {count}"
        )
    device = torch.device("cuda", ranks.local_rank if count > 1 else 0)
    torch.cuda.set_device(device)
    return device


@dataclass(frozen=True, slots=True)
class Route:
    """How this rank's numbers reach the others."""

    backend: str | None = None
    transport: str | None = None
    """Of NCCL between nodes, where it says it."""
    interfaces: tuple[str, ...] = ()
    warning: str | None = None
    """One sentence, if a faster way exists."""

    def described(self) -> dict[str, Any]:
        """As fields of an event."""
        fields = {"backend": self.backend, "transport": self.transport}
        return {**fields, "interfaces": list(self.interfaces)}


def join(ranks: Ranks, device: torch.device, timeout_seconds: float) -> Route:
    """Joins the process group that the environment names; nothing where there is none.

    A process that has joined already stays in its group.

    Args:
        ranks: This process's place.
        device: Decides the backend: NCCL on CUDA, bound to the device so that it connects now and
            not in the first update, or else gloo.
        timeout_seconds: Longest wait in one collective.

    Returns:
        The way that was found.

    Raises:
        Refusal: If node 0 cannot be reached.
    """
    if not ranks.launched or dist.is_initialized():
        return Route()
    require_reach(ranks, os.environ)
    on_gpu = device.type == "cuda"
    log = nccl_log.listen() if on_gpu else None
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        timeout=timedelta(seconds=timeout_seconds),
        device_id=device if on_gpu else None,
    )
    return _route_of_nccl(log, ranks) if on_gpu else _route_of_gloo(os.environ)


def _route_of_gloo(environ: Mapping[str, str]) -> Route:
    named = environ.get("GLOO_SOCKET_IFNAME") or interface_to(environ.get("MASTER_ADDR", ""))
    return Route("gloo", None, tuple(named.split(",")) if named else ())


def _route_of_nccl(log: Path | None, ranks: Ranks) -> Route:
    told = nccl_log.read(log)
    warning = None
    devices = infiniband_devices()
    between_nodes = ranks.world_size > ranks.local_world_size
    if between_nodes and devices and (told.network or "").startswith("Socket"):
        warning = (
            f"NCCL uses sockets although there is InfiniBand here ({', '.join(devices)}): check"
            " NCCL_IB_DISABLE, NCCL_NET and the container's access to the devices"
        )
    return Route("nccl", told.network, told.interfaces, warning)


def set_timeout(seconds: float) -> None:
    """Changes the longest wait in one collective; nothing where there is no group."""
    if dist.is_initialized():
        # torch offers it under no public name.
        distributed_c10d._set_pg_timeout(timedelta(seconds=seconds))  # noqa: SLF001


def leave() -> None:
    """Leaves the group after a run that ended as it should.

    Never called on the way out of an error: it could wait for a peer that will not come.
    """
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
