"""The checkpoints of a run in a directory that this machine can read."""

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddp_operator.api.job import DDPJob
from ddp_operator.builders.env import checkpoint_path
from ddp_operator.builders.names import claim_name
from ddp_operator.client.errors import RequestError

WEIGHTS = "model.safetensors"
"""File with the weights of a model in the directory of a checkpoint."""
WHOLE = "whole"
"""State of a checkpoint that is complete and undamaged."""
_MODULE = "ddp_trainer"
_ENDED = (0, 1)
"""Exit codes of `ddp-trainer inspect` with a result: all are sound, and one is not."""


@dataclass(frozen=True)
class RunCheckpoints:
    """The checkpoints in the directory of a run."""

    directory: Path
    found: list[dict[str, Any]]
    """One object for each checkpoint, newest first, as `ddp-trainer inspect -o json` prints it."""
    start: str
    """Name of the checkpoint that a start would use, or empty."""

    @property
    def damaged(self) -> list[dict[str, Any]]:
        """Return the checkpoints that are not whole."""
        return [one for one in self.found if one["state"] != WHOLE]


def run_directory_of(job: DDPJob, volumes: Path | None, place: str) -> Path:
    """Return the directory of a run on this machine.

    Args:
        job: The job of the run.
        volumes: Folder that has the claims of a local run as folders, or None for a cluster.
        place: Where the job is, in words.

    Raises:
        RequestError: The job has no checkpoints, or they are on the volume of a cluster.
    """
    claim = claim_name(job)
    if claim is None:
        raise RequestError(f"{job.metadata.name} has no spec.checkpoint, so it saves nothing")
    if volumes is None:
        raise RequestError(
            f"the checkpoints of {job.metadata.name} ({place}) are in {checkpoint_path(job)} on the"
            f" volume of the claim {claim}: mount it, and name the directory with --run-dir"
        )
    return volumes / claim / checkpoint_path(job)


def inspect(directory: Path, *, quick: bool) -> RunCheckpoints:
    """Return the checkpoints in the directory of a run.

    Args:
        directory: Directory of the run.
        quick: Whether to compare sizes only, and read no checksums.

    Raises:
        RequestError: The directory contains no run, or cannot be read.
    """
    if not directory.is_dir():
        raise RequestError(f"{directory}: no such directory")
    command = [sys.executable, "-m", _MODULE, "inspect", str(directory), "-o", "json"]
    done = subprocess.run(
        [*command, *(["--quick"] if quick else [])], capture_output=True, text=True, check=False
    )
    if done.returncode not in _ENDED or not done.stdout:
        last = done.stderr.strip().splitlines()[-1:] or ["it printed nothing"]
        raise RequestError(last[0].removeprefix("inspect: "))
    document = json.loads(done.stdout)
    return RunCheckpoints(directory, document["checkpoints"], document.get("start") or "")


def download(checkpoints: RunCheckpoints, step: int | None, output: Path) -> dict[str, Any]:
    """Copy the weights of a checkpoint to a file. Return the checkpoint.

    Args:
        checkpoints: Checkpoints whose checksums were read.
        step: Update of the checkpoint. None selects the newest one that is whole.
        output: Path of the file, which must not exist.

    Raises:
        RequestError: There is no such checkpoint, it is damaged, or the file cannot be written.
    """
    whole = [one for one in checkpoints.found if one["state"] == WHOLE]
    if step is not None:
        whole = [one for one in whole if one["step"] == step]
    if not whole:
        steps = sorted({one["step"] for one in checkpoints.found if one["state"] == WHOLE})
        known = ", ".join(map(str, steps)) or "none"
        wanted = "checkpoint" if step is None else f"checkpoint of update {step}"
        raise RequestError(f"there is no whole {wanted}; whole ones are of the updates: {known}")
    source = checkpoints.directory / whole[0]["name"] / WEIGHTS
    if not source.is_file():
        raise RequestError(f"{source}: there is no such file; `ddp-trainer export` writes a model")
    pending = output.with_name(f".{output.name}.tmp")
    try:
        if output.exists():
            raise RequestError(f"{output}: exists already")
        shutil.copyfile(source, pending)
        pending.replace(output)
    except OSError as error:
        pending.unlink(missing_ok=True)
        raise RequestError(f"{output}: cannot be written: {error.strerror}") from error
    return whole[0]
