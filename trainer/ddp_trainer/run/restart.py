"""Choose between the newest checkpoint and the newest record in the memory of the nodes.

The ranks of each node look for parts of records on their node, and tell all ranks what they have
found. All choose the same record, if a whole one is at least as new as the checkpoint. Then each
rank that holds a part sends it to all others, as rank 0 does with a checkpoint. No checkpoint is
read if the names of all checkpoints show that the record is newer.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from ddp_trainer.checkpoint import records
from ddp_trainer.checkpoint.joined import joined
from ddp_trainer.checkpoint.load import receive
from ddp_trainer.checkpoint.record_choice import Held, Listed, RecordChoice, choose, is_newest
from ddp_trainer.checkpoint.records import Age, Part
from ddp_trainer.checkpoint.snapshot import Checkpoint
from ddp_trainer.ranks.collectives import json_by_rank
from ddp_trainer.ranks.environment import Ranks


@dataclass(frozen=True, slots=True)
class Restart:
    """The state from which an attempt starts."""

    saved: Checkpoint | None
    """The record or the checkpoint. None if the run starts at the beginning."""
    record: str | None = None
    """Origin of the record. None if the attempt starts from the newest checkpoint."""
    warnings: tuple[str, ...] = ()
    """Sentences about records that are not used, and about lost parts of the one that is used."""


def choose_restart(
    folder: Path | None,
    ranks: Ranks,
    device: torch.device,
    listed: Listed | None,
    read: Callable[[], Checkpoint | None],
    *,
    job: str = "",
) -> Restart:
    """Return the newest whole record of all nodes, or the checkpoint if no record is as new.

    Every rank must call this.

    Args:
        folder: Folder of this node's records. None if the node has none.
        ranks: This process's rank.
        device: The run's device.
        listed: What the names of the checkpoints say. None if they do not name the newest one.
        read: Function that returns the newest complete checkpoint, if any. All ranks call it, or
            none, if the record is newer by name.
        job: Uid of the job.

    Raises:
        ReportedError: On every rank, if the parts of the record do not belong together, or if
            `read` raises one.
    """
    found, damaged = _found(folder, ranks, job)
    documents = json_by_rank([[part.model_dump() for part in found], damaged], device)
    held = [[Part.model_validate(part) for part in parts] for parts, _ in documents]
    saved: Checkpoint | None = None
    choice, warnings = choose(held, Age())
    if choice is None or listed is None or not is_newest(choice, listed):
        saved = read()
        choice, warnings = choose(held, Age.of(saved.state if saved else None))
    warnings = [*(sentence for _, sentences in documents for sentence in sentences), *warnings]
    # All ranks of the node have looked, because they have exchanged what they found.
    if folder is not None and ranks.local_rank == 0:
        records.keep_only(folder, choice.record if choice else None)
        if choice:
            records.count_start(folder, choice.record)
    if choice is None:
        return Restart(saved, warnings=tuple(warnings))
    state = _received(choice, folder, ranks.rank, device)
    return Restart(state, _origin(choice), tuple(warnings))


def _found(folder: Path | None, ranks: Ranks, job: str) -> tuple[list[Part], list[str]]:
    """Return the parts that this rank has found, and a sentence about each damaged one."""
    damaged: list[str] = []
    if folder is None:
        return [], damaged
    index, count = ranks.local_rank, ranks.local_world_size
    return records.find(folder, index, count, job=job, warn=damaged.append), damaged


def _received(
    choice: RecordChoice, folder: Path | None, rank: int, device: torch.device
) -> Checkpoint:
    """Return the record on every rank."""

    def part(held: Held) -> Checkpoint:
        own = folder / str(held.part.name) if folder and held.holder == rank else None
        return receive(own, device, src=held.holder)

    return joined(part(choice.common), [part(held) for held in choice.own])


def _origin(choice: RecordChoice) -> str:
    if choice.common.part.division == "all":
        return "from the state that all ranks kept in memory"
    return f"from the state that the node of rank {choice.common.holder} kept in memory"
