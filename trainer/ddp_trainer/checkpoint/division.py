"""Divide the write of a checkpoint over the ranks, so that each byte is written once.

Each rank writes what only it holds: its shards of fsdp2, the optimizer state that it owns with
zero1, its own buffers and residues. Tensors that are equal on all ranks are laid out one after
another, and each rank gets a part of that sequence, so that all ranks write about the same number
of bytes. The ranks need no communication for it beyond the sizes of their own state.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from torch import Tensor

from ddp_trainer.checkpoint.format import (
    AVERAGE,
    BUFFERS,
    COMPRESSION,
    MODEL,
    OPTIMIZER,
    TASK,
)
from ddp_trainer.checkpoint.snapshot import Snapshot
from ddp_trainer.checkpoint.tensor_file import Piece
from ddp_trainer.names import NamedTensors
from ddp_trainer.parallel.compression import owner_of
from ddp_trainer.parallel.dtensor import first_number, is_split, local

Pieces = dict[str, list[Piece]]
"""Pieces by the name of the whole file of their kind."""


@dataclass(slots=True)
class Holding:
    """What a rank holds of a run's state."""

    own: Pieces = field(default_factory=dict)
    """Pieces that this rank must write."""
    equal: list[tuple[str, Piece]] = field(default_factory=list)
    """Whole tensors that are the same on all ranks, each with its file, in the same order."""

    @property
    def own_bytes(self) -> int:
        """Size of the pieces that this rank must write."""
        return sum(piece.nbytes for pieces in self.own.values() for piece in pieces)

    @property
    def equal_bytes(self) -> int:
        """Size of the tensors that are the same on all ranks."""
        return sum(piece.nbytes for _, piece in self.equal)


def files_of(snapshot: Snapshot) -> dict[str, NamedTensors]:
    """Return the tensors of a snapshot by file. Optional files appear only if they have tensors."""
    optional = {
        AVERAGE: snapshot.average,
        COMPRESSION: snapshot.compression,
        BUFFERS: snapshot.buffers,
        TASK: snapshot.task,
    }
    always = {MODEL: snapshot.model, OPTIMIZER: snapshot.optimizer}
    return always | {file: tensors for file, tensors in optional.items() if len(tensors)}


def holding(
    snapshot: Snapshot, rank: int, equal: Collection[int], *, splits_optimizer: bool
) -> Holding | None:
    """Return what this rank holds, or None if a tensor is split in an unknown way.

    Args:
        snapshot: This rank's state.
        rank: This rank's number.
        equal: The tensors that are equal on all ranks, by `id`.
        splits_optimizer: Whether each rank has the optimizer state of different parameters.
    """
    found = Holding()
    for file, tensors in files_of(snapshot).items():
        for name, tensor in sorted(tensors.items()):
            if is_split(tensor) and tensor.numel():
                piece = _shard(name, tensor)
                if piece is None:
                    return None
                mine = piece.numel > 0
            else:
                piece = Piece.whole(name, tensor)
                if id(tensor) in equal and tensor.numel():
                    found.equal.append((file, piece))
                    continue
                mine = _is_own(file, name, rank, splits_optimizer=splits_optimizer)
            if mine:
                found.own.setdefault(file, []).append(piece)
    return found


def _is_own(file: str, name: str, rank: int, *, splits_optimizer: bool) -> bool:
    """Return whether this rank writes a tensor that is not known to be equal on all ranks."""
    if file == BUFFERS or (file == OPTIMIZER and splits_optimizer):
        return True  # No other rank has a tensor of this name.
    owner = owner_of(name) if file == COMPRESSION else None
    return rank == (owner or 0)


def _shard(name: str, tensor: Tensor) -> Piece | None:
    """Return this rank's rows of a split tensor. None if it is not split by rows over all ranks."""
    begin = first_number(tensor)
    return None if begin is None else Piece(name, tuple(tensor.shape), local(tensor), begin)


def writers(own: Sequence[int], equal: int, part_bytes: int) -> list[int]:
    """Return the ranks that write, in order. A single one if the state is small.

    Args:
        own: Bytes that each rank must write.
        equal: Bytes that any rank may write.
        part_bytes: Size up to which one rank writes everything that is equal on all ranks.
    """
    total, world = sum(own) + equal, len(own)
    if total <= part_bytes:
        return [0]
    count = min(world, max(1, -(-equal // max(1, part_bytes))))
    spread = {index * world // count for index in range(count)} if equal else set()
    # Rank 0 writes the JSON documents in any case.
    return sorted({0} | spread | {rank for rank, size in enumerate(own) if size})


def quotas(own: Sequence[int], equal: int) -> list[int]:
    """Divide bytes so that all writers together write about the same.

    Args:
        own: Bytes that each writer must write.
        equal: Bytes to divide.

    Returns:
        Bytes of `equal` for each writer.
    """

    def room(level: int) -> int:
        return sum(max(0, level - size) for size in own)

    level = bisect_left(range(max(own) + equal + 1), equal, key=room)
    # Level is rounded up, so the last shares may be smaller.
    ends = [min(equal, end) for end in accumulate(max(0, level - size) for size in own)]
    return [end - begin for begin, end in pairwise([0, *ends])]


def pieces_of(found: Holding, shares: Sequence[int], number: int) -> Pieces:
    """Return all pieces that one writer writes.

    Args:
        found: What this rank holds.
        shares: Bytes of equal tensors for each writer.
        number: Place of this rank among the writers.
    """
    pieces = {file: list(own) for file, own in found.own.items()}
    ends = list(accumulate(shares))
    begin, end = ends[number] - shares[number], ends[number]
    for file, piece in _between(found.equal, begin, end):
        pieces.setdefault(file, []).append(piece)
    return pieces


def _between(
    equal: Sequence[tuple[str, Piece]], begin: int, end: int
) -> Iterator[tuple[str, Piece]]:
    """Yield the pieces between two places in the sequence of all equal tensors."""
    start = 0
    for file, piece in equal:
        item = piece.source.element_size()
        # Both neighbours round a cut down to the same number.
        first = max(0, begin - start) // item
        last = min(piece.nbytes, max(0, end - start)) // item
        if last > first:
            yield file, Piece(piece.name, piece.shape, piece.source, 0, first, last - first)
        start += piece.nbytes
