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
class FoundRecord:
    """The record from which an attempt starts."""

    saved: Checkpoint
    rank: int
    """The rank that reads it."""

    def origin(self) -> str:
        """Return the origin of the state, for a sentence about the start."""
        return f"from the state that the node of rank {self.rank} kept in memory"


def newest_record(
    folder: Path | None, ranks: Ranks, device: torch.device, saved: Checkpoint | None
) -> FoundRecord | None:
    """Return the newest record of all nodes, or None if no record is newer than the checkpoint.

    Every rank must call this.

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
        return None
    if own is not None and own.age == newest:
        records.count_start(own)
    src = ages.index(newest)
    return FoundRecord(receive(own.path if own else None, device, src=src), src)
