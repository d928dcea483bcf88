"""The device and the process group of this rank."""

from datetime import timedelta

import torch
import torch.distributed as dist

from ddp_trainer.config import Device
from ddp_trainer.environment import Ranks
from ddp_trainer.errors import InputError


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


def join(ranks: Ranks, device: torch.device, timeout_seconds: float) -> None:
    """Joins the process group that torchrun's environment names; nothing without torchrun.

    A process that has joined already stays in its group.

    Args:
        ranks: This process's place.
        device: Decides the backend: NCCL on CUDA, bound to the device so that it connects now and
            not in the first update, or else gloo.
        timeout_seconds: Longest wait in one collective.
    """
    if not ranks.launched or dist.is_initialized():
        return
    on_gpu = device.type == "cuda"
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        timeout=timedelta(seconds=timeout_seconds),
        device_id=device if on_gpu else None,
    )


def leave() -> None:
    """Leaves the group after a run that ended as it should.

    Never called on the way out of an error: it could wait for a peer that will not come.
    """
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
