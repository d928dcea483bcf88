"""Keep the state of a script in memory (`ddp_trainer.report.keep`), as `checkpoint.records`.

The record of a script has only a common part:

    step-00000120.attempt-2/
        part.json         its update and its attempt
        task.json         the state (see `checkpoint.tree`)
        task.safetensors  the tensors in it
        MANIFEST.json     size and CRC32 of each of these files
"""

import sys
import time
from pathlib import Path
from typing import Any

import torch

from ddp_trainer.checkpoint import records
from ddp_trainer.checkpoint.format import (
    TASK,
    TASK_REST,
    BrokenCheckpointError,
    json_bytes,
    read_json,
    verify,
)
from ddp_trainer.checkpoint.header import HeaderError, read_header
from ddp_trainer.checkpoint.load import reading
from ddp_trainer.checkpoint.record_choice import choose
from ddp_trainer.checkpoint.record_writer import write_part
from ddp_trainer.checkpoint.records import Age, Part, PartName
from ddp_trainer.checkpoint.store.base import Entry, Writable
from ddp_trainer.checkpoint.stream import TensorStream, read_some
from ddp_trainer.checkpoint.tensor_file import tensor_parts
from ddp_trainer.checkpoint.tree import decode, encode
from ddp_trainer.errors import InputError
from ddp_trainer.ranks.collectives import json_by_rank, on_rank
from ddp_trainer.ranks.environment import Ranks
from ddp_wire.records import PART_FILE

_FILES = frozenset({PART_FILE, TASK, TASK_REST})


def write_state(folder: Path, part: Part, state: Any) -> int | None:
    """Write the state of a script, unless another rank of this node does.

    Args:
        folder: Folder of the node's records.
        part: Update and attempt.
        state: Dictionaries, lists and tuples of tensors and JSON values, at any depth.

    Returns:
        Its size in bytes. None if another rank has written it.

    Raises:
        InputError: If a value is of another type, or a tensor is not in host memory.
        NoRoomError: If the state does not fit into memory.
        OSError: If the folder fails.
    """
    tensors, document = encode(state, "script")
    for name, tensor in tensors.items():
        if tensor.device.type != "cpu":
            raise InputError(f'"{name}" is on the device {tensor.device}, not in host memory')

    def fill(pending: Writable) -> dict[str, Entry]:
        return {
            TASK: pending.put(TASK, tensor_parts(tensors)),
            TASK_REST: pending.put(TASK_REST, [json_bytes(document)]),
        }

    size = sum(tensor.nbytes for tensor in tensors.values())
    return size if write_part(folder, part, size, fill) else None


def find_state(
    folder: Path | None, ranks: Ranks, device: torch.device, *, job: str = ""
) -> tuple[int, Any] | None:
    """Return the newest state of all nodes and its update, equal on all ranks. None without one.

    Every rank must call this.

    Args:
        folder: Folder of this node's records. None if the node has none.
        ranks: This process's rank.
        device: Device of the process group.
        job: Uid of the job. The state of another job is not used.
    """
    index, count = ranks.local_rank, ranks.local_world_size
    own = _found(folder, index, count, job) if folder else []
    documents = json_by_rank([part.model_dump() for part in own], device)
    found = [[Part.model_validate(part) for part in parts] for parts in documents]
    choice, warnings = choose(found, Age())
    for sentence in warnings if ranks.is_first else ():
        _say(sentence)
    if folder is not None and ranks.local_rank == 0:
        records.keep_only(folder, choice.record if choice else None)
        if choice:
            records.count_start(folder, choice.record)
    if choice is None:
        return None
    path = (folder or Path()) / str(choice.record)
    return choice.record.step, _received(path, device, choice.common.holder)


def _found(folder: Path, index: int, count: int, job: str) -> list[Part]:
    return records.find(folder, index, count, job=job, check=_checked, warn=_say)


def _received(path: Path, device: torch.device, src: int) -> Any:
    """Read a state on one rank, and return it on every rank."""
    described = on_rank(
        src,
        lambda: {
            "rest": read_json(path / TASK_REST),
            "tensors": [tensor.document() for tensor in read_header(path / TASK).tensors],
        },
        device,
    )
    tensors = TensorStream(
        lambda names: read_some(path / TASK, names),
        described["tensors"],
        device,
        lambda act: reading(path, act, time.sleep),
        src,
    )
    return decode(dict(tensors.items()), described["rest"])


def _checked(path: Path, name: PartName) -> Part:
    """Return the description of a state.

    Raises:
        BrokenCheckpointError: If the state is damaged, or has another name.
        InputError: If it has an unknown format.
        OSError: If it cannot be read.
    """
    verify(path, required=_FILES)
    read_json(path / TASK_REST)
    try:
        read_header(path / TASK)
    except HeaderError as error:
        raise BrokenCheckpointError(f"{TASK} cannot be decoded ({error})") from error
    return records.described(path, name)


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
