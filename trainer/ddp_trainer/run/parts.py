"""Results of the steps that open a run.

Each step of `run.opening` creates one of these objects, which later steps read:

    join the group  → Group     this rank's device, its share of a batch, and the process group
    build the task  → BuiltTask the task with its resolved config, equal on all ranks
    open the volume → Resume    the directory of the run, and the checkpoint to resume from
    prepare data    → RunData   the loaders from the position of that checkpoint on (`run.data`)
"""

from dataclasses import dataclass
from typing import Any

import torch

from ddp_trainer.checkpoint.manager import CheckpointManager
from ddp_trainer.checkpoint.snapshot import Checkpoint
from ddp_trainer.config import BatchSplit, RunConfig
from ddp_trainer.ranks.process_group import Route
from ddp_trainer.ranks.topology import Location
from ddp_trainer.run.source import Fingerprints
from ddp_trainer.task import Task


@dataclass(frozen=True, slots=True)
class Group:
    """Device, share of a batch and process group of this rank."""

    device: torch.device
    split: BatchSplit
    route: Route


@dataclass(frozen=True, slots=True)
class BuiltTask:
    """The task, its resolved config, and the result of the comparison of all ranks."""

    task: Task
    config: RunConfig
    document: dict[str, Any]
    """JSON document of task and config, for the run's directory."""
    locations: list[Location]
    fingerprints: Fingerprints
    arithmetics: list[str]
    """What decides how each rank rounds (`RankInfo.arithmetic`)."""
    warnings: list[str]


@dataclass(frozen=True, slots=True)
class Resume:
    """The opened checkpoints, and the checkpoint from which the run resumes."""

    checkpoints: CheckpointManager
    opened: dict[str, Any]
    """Results of `CheckpointManager.open` and `choose` on rank 0. `skipped` has all warnings."""
    saved: Checkpoint | None
    record: str | None = None
    """Origin of the record from which the run starts instead of its newest checkpoint."""
