"""The few collectives that the trainer calls itself; each is nothing in a world of one.

All of them run on the default process group. Every rank must call them in the same order.
"""

import json
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ddp_trainer.errors import Refusal, refusal


def is_joined() -> bool:
    """Whether this process is in a process group."""
    return dist.is_available() and dist.is_initialized()


def sum_over_ranks(values: Tensor) -> Tensor:
    """Sums `values` over ranks, in place, and returns them. They must lie on the run's device."""
    if is_joined():
        dist.all_reduce(values)
    return values


def broadcast(values: Tensor, src: int = 0) -> Tensor:
    """Overwrites `values` by those of rank `src`, in place, and returns them."""
    if is_joined():
        dist.broadcast(values, src=src)
    return values


def wait_for_all(device: torch.device) -> None:
    """Returns once every rank has come here."""
    sum_over_ranks(torch.zeros((), device=device)).item()


def broadcast_json(document: Any, device: torch.device, src: int = 0) -> Any:
    """The JSON document of rank `src`, on every rank; what the others pass is ignored.

    Bytes of JSON travel rather than pickled objects, so that a peer's message is only ever data.
    """
    if not is_joined():
        return document
    payload = json.dumps(document).encode() if dist.get_rank() == src else b""
    size = broadcast(torch.tensor([len(payload)], device=device), src)
    buffer = torch.empty(int(size.item()), dtype=torch.uint8, device=device)
    if payload:
        buffer.copy_(torch.frombuffer(bytearray(payload), dtype=torch.uint8))
    return json.loads(bytes(broadcast(buffer, src).cpu().tolist()))


def on_first_rank(act: Callable[[], Any], device: torch.device) -> Any:
    """Runs `act` on rank 0 and gives its JSON result to every rank.

    Raises:
        Refusal: On every rank, if `act` raised one on rank 0.
    """
    answer: dict[str, Any] = {}
    if not is_joined() or dist.get_rank() == 0:
        try:
            answer = {"result": act()}
        except Refusal as error:
            answer = {"refused": str(error), "code": error.code}
    answer = broadcast_json(answer, device)
    if "refused" in answer:
        raise refusal(answer["code"], answer["refused"])
    return answer["result"]
