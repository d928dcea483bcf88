"""Describe the checkpoints in a run's directory, and which of them a start would use.

The module does not import torch, and changes nothing. It checks checkpoints as a start does
(`checkpoint.contents`), but all of them, also those older than the newest complete one.
"""

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ddp_trainer.checkpoint.contents import read_contents, verify_contents
from ddp_trainer.checkpoint.format import (
    AVERAGE,
    BROKEN,
    CONFIG,
    MANIFEST,
    MODEL,
    PENDING,
    SET_ASIDE,
    BrokenCheckpointError,
    CheckpointName,
    names_in,
)
from ddp_trainer.checkpoint.remote.outline import write_outline
from ddp_trainer.checkpoint.remote.urls import open_url
from ddp_trainer.checkpoint.volume import Sleep, retried, volume_error
from ddp_trainer.errors import InputError

T = TypeVar("T")

WHOLE, DAMAGED, UNKNOWN = "whole", "damaged", "unknown format"
_STATES = {BROKEN: "set aside as damaged", PENDING: "unfinished"}
_DIGEST_BYTES = 8


@dataclass(slots=True)
class Found:
    """One checkpoint, or one folder that looks like one."""

    name: str
    state: str
    """`whole`, `damaged`, `unknown format`, `set aside as damaged` or `unfinished`."""
    reason: str = ""
    """Why it is not whole."""
    step: int | None = None
    attempt: int | None = None
    bytes: int = 0
    tensors: int | None = None
    """Number of tensors of the model."""
    has_average: bool | None = None
    world_size: int | None = None
    """Number of ranks that wrote it."""
    strategy: str | None = None
    task: str | None = None
    task_digest: str | None = None
    """Fingerprint of the task's code; empty for a bundled task."""
    config_digest: str | None = None
    """Hash of the settings."""


@dataclass(slots=True)
class Inspection:
    """The checkpoints of a run's directory, newest first, or a single checkpoint."""

    directory: str
    checkpoints: list[Found]
    start: str | None = None
    """Name of the checkpoint from which a start resumes. None if it resumes from none."""
    outcome: str = ""
    """What a start does, as a sentence."""
    set_aside: dict[str, int] = field(default_factory=dict)
    """Bytes of the folders with the checkpoints of runs that started over, by name."""

    @property
    def sound(self) -> bool:
        """Whether each checkpoint that a start may read is whole."""
        return not any(one.state in {DAMAGED, UNKNOWN} for one in self.checkpoints)


def inspect_url(url: str, *, checksums: bool, sleep: Sleep = time.sleep) -> Inspection:
    """Describe the checkpoints at an address in an object store, as `inspect` does.

    Args:
        url: Address of a run or of a checkpoint.
        checksums: Whether to compare the CRC32 of each file. Otherwise only sizes count.
        sleep: Function that waits between two tries to read.

    Raises:
        InputError: If the address holds no checkpoint, or access is denied.
        VolumeError: If the store fails.
    """
    url = url.rstrip("/")
    parent, _, last = url.rpartition("/")
    single = CheckpointName.parse(last) is not None
    with tempfile.TemporaryDirectory(prefix="ddp-trainer-") as folder:
        path, wrong = Path(folder), dict[str, str]()
        try:
            store = open_url(parent if single else url)
            for name in [last] if single else store.list():
                if CheckpointName.parse(name) is not None:
                    reason = write_outline(store, name, path, checksums=checksums)
                    wrong |= {name: reason} if reason else {}
        except OSError as error:
            sentence = f"inspect: cannot read {url}: {error.strerror or error}"
            raise volume_error(sentence, error) from error
        if not any(path.iterdir()):
            raise InputError(f"inspect: {url} holds no checkpoint")

        def check(one: Path) -> None:
            if one.name in wrong:
                raise BrokenCheckpointError(wrong[one.name])
            verify_contents(one, checksums=False)

        found = inspect(path / last if single else path, checksums=False, sleep=sleep, check=check)
    found.directory = url
    return found


def inspect(
    path: Path,
    *,
    checksums: bool,
    sleep: Sleep = time.sleep,
    check: Callable[[Path], None] | None = None,
) -> Inspection:
    """Describe a run's directory or a single checkpoint, without changes.

    Args:
        path: The run's directory, or the checkpoint.
        checksums: Whether to compare the CRC32 of each file. Otherwise only sizes count.
        sleep: Function that waits between two tries to read.
        check: Function that checks a checkpoint. By default `verify_contents`.

    Raises:
        InputError: If the path is neither, or the process has no right to read it.
        VolumeError: If the volume fails.
    """

    def reading(act: Callable[[], T]) -> T:
        try:
            return retried(act, sleep)
        except OSError as error:
            raise volume_error(f"inspect: cannot read {path}: {error}", error) from error

    def found(one: Path) -> Found:
        return reading(lambda: _found(one, check or partial(verify_contents, checksums=checksums)))

    if not reading(path.is_dir):
        raise InputError(f"inspect: {path} must be a directory of a run or a checkpoint")
    if (path / MANIFEST).is_file() or CheckpointName.parse(path.name):
        return Inspection(str(path), [found(path)])
    names = reading(lambda: names_in(path))
    folders = reading(lambda: _set_aside(path))
    if not (names or folders or (path / CONFIG).is_file()):
        raise InputError(f"inspect: {path} is no directory of a run: it has no {CONFIG}")
    listed = [found(path / str(name)) for name in reversed(names)]
    # A run in progress may delete a checkpoint meanwhile.
    checkpoints = [one for one in listed if os.path.lexists(path / one.name)]
    inspection = Inspection(str(path), checkpoints, set_aside=folders)
    _add_start(inspection)
    return inspection


def _add_start(inspection: Inspection) -> None:
    """Add what a start does, by the rules of `checkpoint.load`."""
    candidates = [one for one in inspection.checkpoints if one.state != _STATES[PENDING]]
    for one in candidates:
        if one.state == UNKNOWN:
            inspection.outcome = f"a start ends with exit code 2, because of {one.name}"
            return
        if one.state == WHOLE:
            inspection.start = one.name
            inspection.outcome = f"a start resumes from {one.name}"
            return
    inspection.outcome = "a start begins at update 0"
    if candidates:
        inspection.outcome = (
            "a start ends with exit code 2, because no checkpoint is usable; with"
            " checkpoint.start_over it begins at update 0"
        )


def _found(path: Path, check: Callable[[Path], None]) -> Found:
    """Describe one checkpoint."""
    name = CheckpointName.parse(path.name)
    suffix = name.suffix if name else ""
    found = Found(path.name, _STATES.get(suffix, WHOLE))
    if name:
        found.step, found.attempt = name.step, name.attempt
    found.bytes = _size(path)
    if suffix == PENDING:
        return found
    try:
        check(path)
    except BrokenCheckpointError as error:
        found.reason = str(error)
        found.state = found.state if suffix else DAMAGED
        return found
    except InputError as error:
        found.reason = str(error).removeprefix("checkpoint: ")
        found.state = found.state if suffix else UNKNOWN
        return found
    if suffix:
        found.reason = "its files are whole now"
    _describe(found, read_contents(path))
    return found


def _describe(found: Found, contents: dict[str, Any]) -> None:
    """Add what a whole checkpoint says of itself."""
    state = contents["state"]
    config = state["config"]
    parallel = config.get("parallel")
    found.step, found.attempt = state["step"], found.attempt or state.get("attempt")
    found.tensors = len(contents["tensors"][MODEL])
    found.has_average = bool(contents["tensors"][AVERAGE])
    found.world_size = state["world_size"]
    found.strategy = parallel.get("strategy") if isinstance(parallel, dict) else None
    found.task, found.task_digest = state.get("task"), state.get("source")
    text = json.dumps(config, sort_keys=True).encode()
    found.config_digest = hashlib.blake2b(text, digest_size=_DIGEST_BYTES).hexdigest()


def _set_aside(path: Path) -> dict[str, int]:
    """Return the bytes of the folders of runs that started over."""
    found = [entry for entry in path.iterdir() if entry.name.startswith(SET_ASIDE)]
    return {entry.name: _size(entry) for entry in sorted(found)}


def _size(path: Path) -> int:
    """Return the bytes of all files in a folder. Follow no link, and ignore what is gone."""
    try:
        if path.is_symlink() or not path.is_dir():
            return path.lstat().st_size
        return sum(_size(entry) for entry in path.iterdir())
    except FileNotFoundError:
        return 0
