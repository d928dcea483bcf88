"""The fence: a record of the attempt that owns a run's directory.

A pod on an unreachable Kubernetes node may continue to write after a newer attempt has started. So
each attempt writes its number to `FENCE.json` when it opens the directory. Each writer reads that
file right before it renames a checkpoint into place, and before it deletes one.

Two gangs may have the same job and attempt number, for example after a cluster backup was restored,
or if a user starts a job by hand. So rank 0, which alone accesses the directory, draws a random
number, the incarnation. The gang that opened the directory last owns it.

A newer attempt may still open the directory between this check and the rename, because no shared
volume offers both in one atomic step. This race is harmless:
- The late checkpoint is complete and is a state of the same run.
- Its name contains its own attempt, so it replaces nothing.
- The newer attempt deletes only checkpoints that it found at its start or wrote itself.
A later attempt may resume from the late checkpoint, as from any other.

A newer attempt may also open the directory between the check and a deletion. In the worst case the
checkpoint that it has just chosen is deleted. Then it fails, and the next attempt resumes from a
newer checkpoint.
"""

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ddp_trainer.checkpoint.format import LARGEST_RECORD, BrokenCheckpointError, read_json
from ddp_trainer.checkpoint.store.directory import replace_json
from ddp_trainer.errors import FencedError

FENCE = "FENCE.json"
"""Name of the fence file in the run's directory."""
Claim = dict[str, Any]
"""Content of a fence: `job`, `attempt` and `incarnation`."""


class Fence:
    """One attempt's claim on the run's directory. Only rank 0 uses it."""

    def __init__(self, directory: Path, job: str, attempt: int) -> None:
        """Prepare the claim without writing to the directory.

        Args:
            directory: The run's directory. It must exist.
            job: Uid of the job. Attempts of one job are ordered by number. If jobs share a
                directory, the job that opened it last owns it.
            attempt: Number of the attempt.
        """
        self._directory = directory
        self._claim: Claim = {
            "job": job, "attempt": attempt, "incarnation": secrets.token_hex(8)
        }  # fmt: skip

    @classmethod
    def of_claim(cls, directory: Path, claim: Mapping[str, Any]) -> "Fence":
        """Return the fence of an attempt that has opened the directory in another process.

        Args:
            directory: The run's directory.
            claim: The claim. Other keys are ignored.
        """
        fence = cls(directory, claim["job"], claim["attempt"])
        fence._claim["incarnation"] = claim["incarnation"]
        return fence

    @property
    def claim(self) -> dict[str, Any]:
        """The claim as JSON: job, attempt and incarnation."""
        return dict(self._claim)

    def open(self) -> None:
        """Claim the run's directory.

        Raises:
            FencedError: If a newer attempt of this job owns it.
            OSError: If the volume fails.
        """
        held = holder(self._directory)
        if held and held["job"] == self._claim["job"] and held["attempt"] > self._claim["attempt"]:
            raise self._fenced(held)
        self._write()

    def check(self) -> None:
        """Check that this process still owns the directory.

        Raises:
            FencedError: If a newer attempt of this job, another process of this attempt, or another
                job owns it.
            OSError: If the volume fails.
        """
        held = holder(self._directory)
        if held == self._claim:
            return
        if held and yields_to(self._claim, held):
            raise self._fenced(held)
        # The file is damaged, or an older attempt overwrote it after reading an even older claim.
        self._write()

    def _write(self) -> None:
        replace_json(self._directory / FENCE, self._claim)

    def _fenced(self, held: Claim) -> FencedError:
        same_job = held["job"] == self._claim["job"]
        twice = same_job and held["attempt"] == self._claim["attempt"]
        who = "another process of " if twice else ""
        other = "" if same_job else " of another job"
        return FencedError(
            f"checkpoint: attempt {self._claim['attempt']} may no longer write to"
            f" {self._directory}, because {FENCE} there names {who}attempt {held['attempt']}"
            f"{other}; attempt {self._claim['attempt']} ends"
        )


def yields_to(claim: Claim, held: Claim) -> bool:
    """Return whether another claim takes precedence over a claim."""
    if held["job"] != claim["job"] or held["attempt"] > claim["attempt"]:
        return True
    # A claim of an older trainer has no incarnation.
    return bool(
        held["attempt"] == claim["attempt"] and held["incarnation"] is not None and held != claim
    )


def holder(directory: Path) -> Claim | None:
    """Return the claim in the fence file; None if it is missing or damaged.

    The field `incarnation` is None if an older trainer wrote the claim.

    A crash cannot leave a damaged file, because writers replace it by a rename. Callers overwrite a
    damaged file, because a refusal would end healthy runs.

    Raises:
        OSError: If the volume fails.
    """
    try:
        held = read_json(directory / FENCE, LARGEST_RECORD)
    except BrokenCheckpointError:
        return None
    return parse_claim(held)


def parse_claim(held: Any) -> Claim | None:
    """Return the claim in the document of a fence; None if it is damaged."""
    if not isinstance(held, dict) or not {"job", "attempt"} <= held.keys():
        return None
    held = {key: held.get(key) for key in ("job", "attempt", "incarnation")}
    valid = isinstance(held["job"], str) and isinstance(held["attempt"], int)
    return held if valid and isinstance(held["incarnation"], str | None) else None
