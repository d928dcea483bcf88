"""Check the contents of a checkpoint, beyond sizes and checksums.

A file with the right CRC32 may still have content that no trainer writes. If only a later read
detected this, the run would fail in every attempt, although an older complete checkpoint exists. So
all files are decoded and checked before a checkpoint is chosen.

The check covers only content that does not depend on the task. Tensors with other names or shapes
are not damage: the user has probably changed the model, and must see an error about this.

The module does not import torch, so that `ddp-trainer inspect` can use the same check as a start.
"""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from ddp_trainer.checkpoint.format import (
    AVERAGE,
    BUFFERS,
    COMPRESSION,
    MODEL,
    OPTIMIZER,
    OPTIMIZER_REST,
    REQUIRED,
    STATE,
    TASK,
    TASK_REST,
    BrokenCheckpointError,
    CheckpointName,
    UnreadableCheckpointError,
    read_json,
    verify,
)
from ddp_trainer.checkpoint.parts import StoredTensor, files_in, stored_tensors
from ddp_trainer.checkpoint.references import replaced
from ddp_trainer.saved_state import SavedState
from ddp_wire.records import PART_FILE


class _OptimizerRest(BaseModel):
    """Model of `optimizer.json` that accepts any additional fields."""

    model_config = ConfigDict(strict=True)

    state: dict[str, Any]
    groups: list[dict[str, Any]]


def verify_contents(path: Path, *, checksums: bool = True, partial: bool = False) -> None:
    """Compare a checkpoint with its manifest, and decode everything except tensor values.

    Args:
        path: The checkpoint.
        checksums: Whether to read each file and compare its CRC32. Otherwise only sizes count.
        partial: Whether other parts may hold all weights (`checkpoint.records`).

    Raises:
        BrokenCheckpointError: If it is damaged, or has content that no trainer writes.
        UnreadableCheckpointError: If the process has no right to read it.
        InputError: If it has an unknown format.
        OSError: If the volume fails.
    """
    try:
        required = REQUIRED | {PART_FILE} if partial else REQUIRED
        verify(path, checksums=checksums, required=required)
        contents = read_contents(path)
    except PermissionError as error:
        raise UnreadableCheckpointError(f"it cannot be read ({error.strerror})") from error
    _check_state(path, contents["state"])
    _check(OPTIMIZER_REST, _OptimizerRest, contents["optimizer_rest"])
    if not partial and not contents["tensors"][MODEL]:
        raise BrokenCheckpointError(f"{MODEL} holds no tensor")
    _check_task(contents["tensors"][TASK], contents["task_rest"])


def read_contents(path: Path) -> dict[str, Any]:
    """Return a checkpoint's JSON documents, and the names, types and shapes of its tensors.

    Raises:
        BrokenCheckpointError: If a file cannot be decoded.
        OSError: If the volume fails.
    """
    return {
        "optimizer_rest": read_json(path / OPTIMIZER_REST),
        "state": read_json(path / STATE),
        "task_rest": read_json(path / TASK_REST) if TASK_REST in files_in(path) else None,
        "tensors": {
            file: [tensor.document() for tensor in tensors]
            for file, tensors in read_index(path).items()
        },
    }


def read_index(path: Path) -> dict[str, list[StoredTensor]]:
    """Return the tensors of a checkpoint, by the name of the whole file of their kind.

    Raises:
        BrokenCheckpointError: If a file cannot be decoded.
        OSError: If the volume fails.
    """
    files = files_in(path)
    kinds = (MODEL, OPTIMIZER, AVERAGE, COMPRESSION, BUFFERS, TASK)
    return {file: stored_tensors(path, file, files) for file in kinds}


def _check_state(path: Path, state: Any) -> None:
    name = CheckpointName.parse(path.name)
    step = state.get("step") if isinstance(state, dict) else None
    if name and step != name.step:
        raise BrokenCheckpointError(f"{STATE} is of step {step!r:.40}, not of step {name.step}")
    _check(STATE, SavedState, state)


def _check(file: str, kind: type[BaseModel], document: Any) -> None:
    try:
        kind.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise BrokenCheckpointError(
            f"{file} has an invalid value ({place}: {first['msg']:.80})"
        ) from error


def _check_task(described: list[list[Any]], document: Any) -> None:
    """Check that the task's state can be rebuilt, with the tensors' numbers of dimensions."""

    def check_order(dimensions: int, order: Any) -> int:
        if order is not None:
            sorted(order)
        return dimensions

    try:
        replaced({name: len(shape) for name, shape, _ in described}, document, check_order)
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        kind = type(error).__name__
        raise BrokenCheckpointError(
            f"{TASK_REST} has an invalid value ({kind}: {error!s:.80})"
        ) from error
