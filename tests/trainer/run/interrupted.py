"""Folders of a run that is interrupted, beside those of a run that is not."""

from collections import Counter
from pathlib import Path

from ddp_trainer.checkpoint import records
from tests.trainer.rank_processes import Gang

NOISY = {"samples": 37, "dropout": 0.3, "noise": 0.1}
"""Settings of a task whose weights depend on the order of its samples and its random numbers."""


class Folders:
    """The directories with checkpoints of both runs, and the records of the interrupted one."""

    def __init__(self, path: Path) -> None:
        self.whole, self.broken, self.records = path / "a", path / "b", path / "records"
        self.records.mkdir()

    def variables(self, attempt: int) -> dict[str, str]:
        """Return the variables of an attempt of the run that is interrupted."""
        return {
            "DDP_CHECKPOINT_DIR": str(self.broken),
            "DDP_RECORDS_DIR": str(self.records),
            "DDP_ATTEMPT": str(attempt),
        }

    def steps(self) -> list[int]:
        """Return the updates of the records that have the parts of all ranks, oldest first."""
        parts = records.find(self.records)
        needed = {
            part.step: 1 if part.division == "whole" else 1 + part.world_size for part in parts
        }
        counts = Counter(part.step for part in parts)
        return sorted(step for step, count in counts.items() if count >= needed[step])

    def names(self) -> list[str]:
        """Return the names of the parts of records."""
        return sorted(path.name for path in self.records.glob("step-*"))


def resumed(gang: Gang) -> list[int]:
    """Return the updates from which an attempt has resumed."""
    return [event["step"] for event in gang.events("resume")]


def warnings(gang: Gang) -> list[str]:
    """Return the warnings of an attempt."""
    return [event["message"] for event in gang.events("warning")]
