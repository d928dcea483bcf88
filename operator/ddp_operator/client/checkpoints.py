"""The checkpoints of a run: in a directory of this machine, or on the claim of a cluster."""

import contextlib
import json
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ddp_operator.client.claim_reader import ClaimReader
from ddp_operator.client.errors import RequestError
from ddp_operator.client.jobs import Job
from ddp_operator.client.run_folder import run_directory_of

WEIGHTS = "model.safetensors"
"""File with the weights of a model in the directory of a checkpoint."""
WHOLE = "whole"
"""State of a checkpoint that is complete and undamaged."""
_ENDED = (0, 1)
"""Exit codes of `ddp-trainer inspect` with a result: all are sound, and one is not."""
_MOST_TRIES = 3
"""Checkpoints that may be deleted while they are downloaded."""


@dataclass(frozen=True)
class RunCheckpoints:
    """The checkpoints in the directory of a run."""

    directory: str
    found: list[dict[str, Any]]
    """One object for each checkpoint, newest first, as `ddp-trainer inspect -o json` prints it."""
    start: str
    """Name of the checkpoint that a start would use, or empty."""

    @property
    def damaged(self) -> list[dict[str, Any]]:
        """Return the checkpoints that are not whole."""
        return [one for one in self.found if one["state"] != WHOLE]

    def chosen(self, step: int | None) -> dict[str, Any]:
        """Return the newest whole checkpoint, or that of an update.

        Raises:
            RequestError: There is no such checkpoint.
        """
        all_whole = [one for one in self.found if one["state"] == WHOLE]
        whole = [one for one in all_whole if step is None or one["step"] == step]
        if not whole:
            known = ", ".join(map(str, sorted({one["step"] for one in all_whole}))) or "none"
            wanted = "checkpoint" if step is None else f"checkpoint of update {step}"
            raise RequestError(
                f"there is no whole {wanted}; whole ones are of the updates: {known}"
            )
        return whole[0]


class Checkpoints(Protocol):
    """Access to the checkpoints of a run."""

    def inspect(self, *, quick: bool) -> RunCheckpoints:
        """Return the checkpoints of the run.

        Args:
            quick: Whether to compare sizes only, and read no checksums.

        Raises:
            RequestError: The directory contains no run, or cannot be read.
        """

    def copy_weights(self, name: str, target: Path) -> None:
        """Copy the weights of a checkpoint to a new safetensors file.

        Raises:
            RequestError: The weights cannot be read.
            OSError: The file cannot be written.
        """


class DirectoryCheckpoints:
    """Checkpoints in a directory of this machine."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def inspect(self, *, quick: bool) -> RunCheckpoints:
        """Implement `Checkpoints.inspect`."""
        if not self._directory.is_dir():
            raise RequestError(f"{self._directory}: no such directory")
        done = self._run(*_inspect(str(self._directory), quick=quick))
        if done.returncode not in _ENDED or not done.stdout:
            raise RequestError(_sentence(done.stderr))
        return _parsed(str(self._directory), done.stdout)

    def copy_weights(self, name: str, target: Path) -> None:
        """Implement `Checkpoints.copy_weights`."""
        source = self._directory / name
        if (source / WEIGHTS).is_file():
            shutil.copyfile(source / WEIGHTS, target)
            return
        done = self._run(*_convert(str(source), str(target)))
        if done.returncode:
            raise RequestError(_sentence(done.stderr))

    def _run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)


class ClaimCheckpoints:
    """Checkpoints on the claim of a job on a cluster."""

    def __init__(self, reader: ClaimReader) -> None:
        self._reader = reader

    def inspect(self, *, quick: bool) -> RunCheckpoints:
        """Implement `Checkpoints.inspect`."""
        directory = self._reader.directory
        printed = self._reader.run(shlex.join(["python", *_inspect(directory, quick=quick)]))
        _, brace, rest = "\n".join(printed.lines).partition("{")  # After warnings of libraries.
        if printed.code not in _ENDED or not brace:
            raise RequestError(_sentence(printed.error()))
        return _parsed(directory, brace + rest)

    def copy_weights(self, name: str, target: Path) -> None:
        """Implement `Checkpoints.copy_weights`."""
        source = f"{self._reader.directory}/{name}"
        weights, copied = f"{source}/{WEIGHTS}", f"/tmp/{WEIGHTS}"  # noqa: S108 (in the container)
        convert = shlex.join(["python", *_convert(source, copied)])
        with target.open("wb") as output:
            self._reader.copy(
                f"test -f {shlex.quote(weights)} || {convert}", [weights, copied], output
            )


def checkpoints_of(job: Job) -> Checkpoints:
    """Return the checkpoints of a job where they are.

    Raises:
        RequestError: The job has no checkpoints.
    """
    volumes = job.backend.volumes(job.name)
    if volumes is None:
        return ClaimCheckpoints(ClaimReader(job))
    return DirectoryCheckpoints(run_directory_of(job.read(), volumes))


def download(source: Checkpoints, step: int | None, output: Path) -> dict[str, Any]:
    """Verify the checkpoints, and copy the weights of one to a file. Return the checkpoint.

    Args:
        source: The checkpoints.
        step: Update of the checkpoint. None selects the newest one that is whole.
        output: Path of the file, which must not exist.

    Raises:
        RequestError: There is no such checkpoint, it is damaged, or the file cannot be written.
    """
    try:
        taken = output.exists()
    except OSError as error:
        raise RequestError(f"{output}: cannot be written: {error.strerror}") from error
    if taken:
        raise RequestError(f"{output}: exists already")
    pending = output.with_name(f".{output.stem}.tmp{output.suffix}")
    try:
        chosen = _copy_chosen(source, step, pending)
        pending.replace(output)
    except OSError as error:
        raise RequestError(f"{output}: cannot be written: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            pending.unlink()
    return chosen


def _copy_chosen(source: Checkpoints, step: int | None, target: Path) -> dict[str, Any]:
    """Copy the weights of a whole checkpoint. A run in progress may delete the chosen one."""
    tried: set[str] = set()
    while True:
        chosen = source.inspect(quick=False).chosen(step)
        try:
            source.copy_weights(chosen["name"], target)
        except RequestError:
            if chosen["name"] in tried or len(tried) >= _MOST_TRIES:
                raise  # It still exists, or the run is too fast.
            tried.add(chosen["name"])
            target.unlink(missing_ok=True)
        else:
            return chosen


def _inspect(directory: str, *, quick: bool) -> list[str]:
    """Return the arguments of Python that print the checkpoints in a directory as JSON."""
    command = ["-m", "ddp_trainer", "inspect", directory, "-o", "json"]
    return [*command, *(["--quick"] if quick else [])]


def _convert(source: str, target: str) -> list[str]:
    """Return the arguments of Python that join the weights of a checkpoint in one file."""
    return ["-m", "ddp_trainer", "convert", source, target, "--to", "safetensors"]


def _parsed(directory: str, text: str) -> RunCheckpoints:
    document = json.loads(text)
    return RunCheckpoints(directory, document["checkpoints"], document.get("start") or "")


def _sentence(error: str) -> str:
    """Return the last line of an error message, without the name of the command."""
    last = error.strip().splitlines()[-1:] or ["it printed nothing"]
    return last[0].removeprefix("inspect: ").removeprefix("convert: ")
