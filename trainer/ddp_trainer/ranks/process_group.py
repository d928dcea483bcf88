"""Select the device of this rank, and join the process group."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
from ddp_trainer.ranks.reach import infiniband_devices, interface_to, wait_until_reachable
from ddp_trainer.ranks.store import store_of_rank_0


def choose_device(wanted: Device, ranks: Ranks) -> torch.device:
    """Return this rank's device: one GPU per rank, or the CPU.

    If a container exposes only one GPU to each rank, that GPU has index 0 for every local rank.

    Raises:
        InputError: If CUDA is required but missing, or if there are more ranks than GPUs.
    """
    if wanted == "cpu":
        return torch.device("cpu")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        if wanted == "cuda":
            raise InputError("config: device is cuda, but this node has no CUDA device")
        return torch.device("cpu")
    if count > 1 and ranks.local_rank >= count:
        raise InputError(
            f"config: each rank needs its own GPU, but this node has {ranks.local_world_size} ranks"
            f" and {count} GPUs"
        )
    device = torch.device("cuda", ranks.local_rank if count > 1 else 0)
    torch.cuda.set_device(device)
    return device


@dataclass(frozen=True, slots=True)
class Route:
    """Network path from this rank to all other ranks."""

    backend: str | None = None
    """Backend of the process group: `nccl` or `gloo`."""
    transport: str | None = None
    """NCCL's transport between nodes, if NCCL's log names one."""
    interfaces: tuple[str, ...] = ()
    """Names of network interfaces or InfiniBand devices."""
    warning: str | None = None
    """Warning in one sentence, if a faster transport is available but unused."""

    def described(self) -> dict[str, Any]:
        """Return the route as fields of an event."""
        fields = {"backend": self.backend, "transport": self.transport}
        return {**fields, "interfaces": list(self.interfaces)}


def join(ranks: Ranks, device: torch.device, timeout_seconds: float) -> Route:
    """Join the process group that the environment describes, if there is one.

    Do nothing if the process has already joined a group.

    Args:
        ranks: This process's rank.
        device: Device that selects the backend: NCCL on CUDA, otherwise gloo. NCCL is bound to the
            device, so that it connects at once and not in the first update.
        timeout_seconds: Maximum seconds of one collective.

    Returns:
        The route to the other ranks.

    Raises:
        ReportedError: If node 0 is unreachable.
        InputError: If two ranks use the same GPU.
    """
    if not ranks.launched or dist.is_initialized():
        return Route()
    wait_until_reachable(ranks, os.environ)
    on_gpu = device.type == "cuda"
    log = nccl_log.enable() if on_gpu else None
    try:
        with store_of_rank_0(ranks, os.environ):
            dist.init_process_group(
                "nccl" if on_gpu else "gloo",
                timeout=timedelta(seconds=timeout_seconds),
                device_id=device if on_gpu else None,
            )
    except dist.DistBackendError as error:
        raise (_shared_gpu(str(error), ranks) or error) from error
    return _route_of_nccl(log, ranks) if on_gpu else _route_of_gloo(os.environ)


def _shared_gpu(nccl_error: str, ranks: Ranks) -> InputError | None:
    """Return an error if two ranks use the same GPU, or None if NCCL failed for another reason."""
    found = re.search(r"Duplicate GPU detected : rank (\d+) and rank (\d+)", nccl_error)
    if found is None:
        return None
    one, other = sorted(map(int, found.groups()))
    return InputError(
        f"config: each rank needs its own GPU, but ranks {one} and {other} use the same one; this"
        f" node has {ranks.local_world_size} ranks. Start one rank for each GPU, or set device: cpu"
    )


def _route_of_gloo(environ: Mapping[str, str]) -> Route:
    named = environ.get("GLOO_SOCKET_IFNAME") or interface_to(environ.get("MASTER_ADDR", ""))
    return Route("gloo", None, tuple(named.split(",")) if named else ())


def _route_of_nccl(log: Path | None, ranks: Ranks) -> Route:
    found = nccl_log.read(log)
    warning = None
    devices = infiniband_devices()
    between_nodes = ranks.world_size > ranks.local_world_size
    if between_nodes and devices and (found.network or "").startswith("Socket"):
        warning = (
            f"NCCL uses sockets although this node has InfiniBand ({', '.join(devices)}): check"
            " NCCL_IB_DISABLE, NCCL_NET and the container's access to the devices"
        )
    return Route("nccl", found.network, found.interfaces, warning)


def set_timeout(seconds: float) -> None:
    """Set the timeout of each collective. Do nothing without a process group."""
    if not dist.is_initialized():
        return
    # torch has a public function since 2.14, and the older one warns there.
    public: Any = getattr(dist, "set_timeout", None)
    (public or distributed_c10d._set_pg_timeout)(timedelta(seconds=seconds))  # noqa: SLF001


@contextmanager
def timeout(seconds: float, afterwards: float) -> Iterator[None]:
    """Set the timeout of each collective within the context."""
    set_timeout(seconds)
    try:
        yield
    finally:
        set_timeout(afterwards)


def leave() -> None:
    """Leave the process group after a successful run.

    Never call this function after an error, because it could wait for a failed peer.
    """
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
