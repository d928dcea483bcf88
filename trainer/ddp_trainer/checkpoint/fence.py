"""The fence: which attempt a run's directory belongs to.

A pod on a node that nobody can reach may go on writing after the attempt that replaces its own has
begun. So an attempt that opens the directory puts its number into `FENCE.json`, and each writer
looks there right before it renames a checkpoint into place and before it deletes one.

Between that look and the rename a newer attempt may still open the directory: no volume that all
nodes share offers both in one step. That does no harm. The late checkpoint is whole; it is a state
of the same run; it stands under a name of its own attempt, so it replaces nothing; and the newer
attempt never deletes what it did not find or write itself. A later attempt may resume from it, as
from any other. Between the look and a deletion the worst is that the newer attempt loses a
checkpoint that it has just chosen: it fails, and the one after it takes the newer one.
"""

from pathlib import Path
from typing import Any

from ddp_trainer.checkpoint.format import BrokenCheckpointError, read_json
from ddp_trainer.checkpoint.writer import replace_json
from ddp_trainer.errors import FencedError

FENCE = "FENCE.json"


class Fence:
    """One attempt's claim on the run's directory. Rank 0 only."""

    def __init__(self, directory: Path, job: str, attempt: int) -> None:
        """Claims nothing yet.

        Args:
            directory: The run's own; must exist.
            job: Whose attempts these are. Attempts of one job are ordered by number. Jobs that
                share a directory follow one another: the one that opened it last has it.
            attempt: Number of the attempt.
        """
        self._directory = directory
        self._mine = {"job": job, "attempt": attempt}

    def open(self) -> None:
        """Claims the directory.

        Raises:
            FencedError: If a newer attempt of this job has it.
            OSError: If the volume refuses.
        """
        held = holder(self._directory)
        if held and held["job"] == self._mine["job"] and held["attempt"] > self._mine["attempt"]:
            raise self._refusal(held)
        self._claim()

    def check(self) -> None:
        """Returns while the directory is still this attempt's.

        Raises:
            FencedError: If a newer attempt of this job, or another job, has it.
            OSError: If the volume refuses.
        """
        held = holder(self._directory)
        if held == self._mine:
            return
        if held and (held["job"] != self._mine["job"] or held["attempt"] > self._mine["attempt"]):
            raise self._refusal(held)
        # Damaged, or overwritten by an older attempt that was slow between its look and its claim.
        self._claim()

    def _claim(self) -> None:
        replace_json(self._directory / FENCE, self._mine)

    def _refusal(self, held: dict[str, Any]) -> FencedError:
        other = "" if held["job"] == self._mine["job"] else " of another job"
        return FencedError(
            f"checkpoint: attempt {self._mine['attempt']} may no longer write to"
            f" {self._directory}: attempt {held['attempt']}{other} has opened it since"
        )


def holder(directory: Path) -> dict[str, Any] | None:
    """What the fence says: `job` and `attempt`; nothing when it is missing or damaged.

    A damaged one cannot be left by a crash, because it is replaced by a rename. Whoever finds it
    writes it anew: refusing would end runs that are well.

    Raises:
        OSError: If the volume refuses.
    """
    try:
        held = read_json(directory / FENCE)
    except BrokenCheckpointError:
        return None
    if not isinstance(held, dict) or held.keys() != {"job", "attempt"}:
        return None
    well = isinstance(held["job"], str) and isinstance(held["attempt"], int)
    return held if well else None
