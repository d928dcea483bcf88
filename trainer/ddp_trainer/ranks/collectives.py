"""Collectives that the trainer itself calls. With a single rank they do nothing.

All of them use the default process group. Every rank must call them in the same order.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ddp_trainer.errors import ReportedError, reported_error


def is_joined() -> bool:
    """Return whether this process is in a process group."""
    return dist.is_available() and dist.is_initialized()


def sum_over_ranks(values: Tensor) -> Tensor:
    """Sum `values` over ranks in place and return them. The values must be on the run's device."""
    if is_joined():
        dist.all_reduce(values)
    return values


def by_rank(value: int, device: torch.device) -> list[int]:
    """Return the value of each rank, in the order of ranks.

    Args:
        value: This rank's value, of 63 bits.
        device: The run's device.
    """
    if not is_joined():
        return [value]
    values = torch.zeros(dist.get_world_size(), dtype=torch.int64, device=device)
    values[dist.get_rank()] = value
    found: list[int] = sum_over_ranks(values).tolist()
    return found


def rows_of_ranks(values: Tensor) -> Tensor:
    """Return the values of all ranks, one row per rank, on the device of `values`.

    Args:
        values: This rank's integers. Shape (n,), on the run's device.
    """
    if not is_joined():
        return values.unsqueeze(0)
    rows = values.new_zeros((dist.get_world_size(), len(values)))
    rows[dist.get_rank()] = values
    return sum_over_ranks(rows)


def broadcast(values: Tensor, src: int = 0) -> Tensor:
    """Overwrite `values` in place with the values of rank `src`, and return them."""
    if is_joined():
        dist.broadcast(values, src=src)
    return values


def wait_for_all(device: torch.device) -> None:
    """Block until every rank has called this function."""
    sum_over_ranks(torch.zeros((), device=device)).item()


def finish_updates(device: torch.device) -> None:
    """Block until the device has finished all work that the host has queued."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def broadcast_json(document: Any, device: torch.device, src: int = 0) -> Any:
    """Return the JSON document of rank `src` on every rank. Documents of other ranks are ignored.

    The ranks exchange JSON instead of pickled objects, so that a peer cannot send code.
    """
    if not is_joined():
        return document
    payload = json.dumps(document).encode() if dist.get_rank() == src else b""
    size = broadcast(torch.tensor([len(payload)], device=device), src)
    buffer = torch.empty(int(size.item()), dtype=torch.uint8, device=device)
    if payload:
        buffer.copy_(torch.frombuffer(bytearray(payload), dtype=torch.uint8))
    return json.loads(bytes(broadcast(buffer, src).cpu().tolist()))


def json_by_rank(document: Any, device: torch.device) -> list[Any]:
    """Return the JSON document of each rank, in the order of ranks."""
    if not is_joined():
        return [document]
    own = json.dumps(document).encode()
    sizes = by_rank(len(own), device)
    begin = sum(sizes[: dist.get_rank()])
    together = torch.zeros(sum(sizes), dtype=torch.uint8, device=device)
    together[begin : begin + len(own)] = torch.frombuffer(bytearray(own), dtype=torch.uint8)
    parts = sum_over_ranks(together).cpu().split(sizes)
    return [json.loads(bytes(part.tolist())) for part in parts]


def on_first_rank(act: Callable[[], Any], device: torch.device) -> Any:
    """Call `act` on rank 0 and return its JSON result on every rank.

    Raises:
        ReportedError: On every rank, if `act` raised a ReportedError on rank 0.
    """
    return on_rank(0, act, device)


def on_rank(src: int, act: Callable[[], Any], device: torch.device) -> Any:
    """Call `act` on rank `src` and return its JSON result on every rank.

    Raises:
        ReportedError: On every rank, if `act` raised a ReportedError on rank `src`.
    """
    answer: dict[str, Any] = {}
    if not is_joined() or dist.get_rank() == src:
        try:
            answer = {"result": act()}
        except ReportedError as error:
            answer = {"error": str(error), "code": error.code}
    answer = broadcast_json(answer, device, src)
    if "error" in answer:
        raise reported_error(answer["code"], answer["error"])
    return answer["result"]


@contextmanager
def errors_of_first_rank(device: torch.device) -> Iterator[None]:
    """Return a context that, at its end, raises rank 0's `ReportedError` on every rank.

    Rank 0 works within the context. Every other rank enters an empty context and waits.

    Raises:
        ReportedError: On every rank, if rank 0 raised a ReportedError.
    """
    failed: ReportedError | None = None
    try:
        yield
    except ReportedError as error:
        failed = error
    own = {"error": str(failed), "code": failed.code} if failed else {}
    answer: dict[str, Any] = broadcast_json(own, device)
    if answer:
        raise reported_error(answer["code"], answer["error"]) from failed


def first_failure(
    act: Callable[[], None], actors: Sequence[int], device: torch.device
) -> OSError | None:
    """Call `act` on some ranks, and return the error of the first that fails, on every rank.

    Args:
        act: Function that does not communicate.
        actors: The ranks that call it.
        device: The run's device.

    Raises:
        ReportedError: On every rank, if `act` raised a ReportedError on one.
    """
    own: dict[str, Any] = {}
    if (dist.get_rank() if is_joined() else 0) in actors:
        try:
            act()
        except OSError as error:
            own = {"errno": error.errno, "text": str(error)}
        except ReportedError as error:
            own = {"code": error.code, "text": str(error)}
    failed = [rank for rank, flag in enumerate(by_rank(int(bool(own)), device)) if flag]
    if not failed:
        return None
    first = broadcast_json(own, device, failed[0])
    if "code" in first:
        raise reported_error(first["code"], first["text"])
    found = OSError(first["text"])
    found.errno = first["errno"]
    return found
