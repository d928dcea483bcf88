"""Choose between the newest checkpoint and the newest record in the memory of a node.

The first rank of each node looks for a record on its node. All ranks compare what they have found,
and take the newest record if it is newer than the checkpoint. Then the rank that has it sends it to
all others, as rank 0 does with a checkpoint.
"""

from dataclasses import dataclass
from pathlib import Path

import torch

from ddp_trainer.checkpoint import records
from ddp_trainer.checkpoint.load import receive
from ddp_trainer.checkpoint.records import Age
from ddp_trainer.checkpoint.snapshot import Checkpoint
from ddp_trainer.ranks.collectives import by_rank
from ddp_trainer.ranks.environment import Ranks


@dataclass(frozen=True, slots=True)
class Restart:
    """The state from which an attempt starts."""

    saved: Checkpoint | None
    """The record or the checkpoint. None if the run starts at the beginning."""
    record: str | None = None
    """Origin of the record. None if the attempt starts from the newest checkpoint."""
    warning: str | None = None
    """Sentence about records that are not used, because they differ."""


def choose_restart(
    folder: Path | None, ranks: Ranks, device: torch.device, saved: Checkpoint | None
) -> Restart:
    """Return the newest record of all nodes, or the checkpoint if no record is newer.

    Records of the same update are equal, unless the memory or the processor of a node has changed
    one. Then none of them is used. Every rank must call this.

    Args:
        folder: Folder of this node's records. None if the node has none.
        ranks: This process's rank.
        device: The run's device.
        saved: The newest checkpoint, if any.
    """
    own = records.newest(folder) if folder is not None and ranks.local_rank == 0 else None
    age = own.age if own else Age()
    found = zip(by_rank(age.rollbacks, device), by_rank(age.step, device), strict=True)
    ages = [Age(*each) for each in found]
    newest = max(ages)
    if newest <= Age.of(saved.state if saved else None):
        return Restart(saved)
    if own is not None and own.age == newest:
        records.count_start(own)
    digests = by_rank(own.digest if own else 0, device)
    holders = [rank for rank, each in enumerate(ages) if each == newest]
    if len({digests[rank] for rank in holders}) > 1:
        nodes = ", ".join(map(str, holders))
        return Restart(
            saved,
            warning=f"the nodes of ranks {nodes} kept different states after update {newest.step}"
            " in memory, so none is used: the memory or the processor of one of them has a fault",
        )
    src = holders[0]
    origin = f"from the state that the node of rank {src} kept in memory"
    return Restart(receive(own.path if own else None, device, src=src), origin)
