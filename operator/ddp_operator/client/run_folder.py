"""Manage the folder of a local run, which one process at a time uses and which stores the job."""

import contextlib
import fcntl
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ddp_operator.api.job import DDPJob, InvalidJobError, parse_job
from ddp_operator.builders.env import checkpoint_path
from ddp_operator.builders.names import claim_name
from ddp_operator.client.errors import NoSuchJobError, RequestError
from ddp_operator.cluster.errors import ClusterError
from ddp_wire.files import open_to_read, read_file

Manifest = dict[str, Any]
JOB_FILE = "job.json"
"""Name of the file with the DDPJob object and its status."""
EVENTS_FILE = "events.jsonl"
"""Name of the file with the Events of all runs, one JSON object a line."""
LOCK_FILE = "job.json.lock"
"""Name of the file that the process of the run locks. It contains the process id."""
JOB_BYTES = 1 << 24
"""Maximum size of the file with the job, in bytes."""
_NUMBER_BYTES = 32


@dataclass(frozen=True)
class EarlierRun:
    """The last run of a job in its folder."""

    manifest: Manifest
    """The DDPJob object of the run, with its status."""
    written: datetime
    """Time at which the run last wrote the object."""

    @property
    def job(self) -> DDPJob | None:
        """Return the job of the run, or None if this version cannot read it."""
        try:
            return parse_job(self.manifest)
        except (InvalidJobError, AttributeError):
            return None


def folder_of(home: Path, name: str) -> Path:
    """Return the folder of a run, which need not exist.

    Raises:
        NoSuchJobError: The name would lead out of the folder of all runs, or to that folder.
    """
    if name in {"", ".."} or name != Path(name).name:
        raise NoSuchJobError(f"there is no run {name!r} in the folder {home}")
    return home / name


def save_job(home: Path, job: Manifest) -> None:
    """Write the job with its status to the folder. Leave the old file intact if that fails."""
    path = home / JOB_FILE
    pending = path.with_suffix(".tmp")
    with contextlib.suppress(OSError):  # A full disk must not end a run. The next change retries.
        home.mkdir(parents=True, exist_ok=True)
        pending.write_text(json.dumps(job, default=str), encoding="utf-8")
        pending.replace(path)


def load_job(home: Path) -> EarlierRun | None:
    """Return the job that is stored in the folder, or None if the file is missing or damaged."""
    try:
        text = read_file(home / JOB_FILE, JOB_BYTES)
        written = datetime.fromtimestamp((home / JOB_FILE).stat().st_mtime, UTC)
        found = json.loads(text)
    except (OSError, ValueError, RecursionError):
        return None
    return EarlierRun(found, written) if isinstance(found, dict) else None


def is_running(home: Path) -> bool:
    """Return whether a process holds the lock of the folder."""
    try:
        descriptor = open_to_read(home / LOCK_FILE)
    except OSError:
        return False
    with os.fdopen(descriptor, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def owner(home: Path) -> int | None:
    """Return the id of the process that runs the job in a folder, or None if none does."""
    if not is_running(home):
        return None
    try:
        text = read_file(home / LOCK_FILE, _NUMBER_BYTES)
    except OSError:
        return None
    return int(text) if text.strip().isdigit() else None


def add_event(home: Path, job: Manifest, event: Mapping[str, str]) -> None:
    """Append an Event about the job to the folder. Ignore a full disk."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    about = {"kind": job["kind"], "name": job["metadata"]["name"]}
    # As Kubernetes names Events: the object, and the time in hexadecimal nanoseconds.
    head = {"kind": "Event", "metadata": {"name": f"{about['name']}.{time.time_ns():x}"}}
    line = json.dumps({**head, **event, "lastTimestamp": now, "involvedObject": about})
    with contextlib.suppress(OSError), (home / EVENTS_FILE).open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def load_events(home: Path) -> list[Manifest]:
    """Return the Events in a folder, oldest first. Skip damaged lines."""
    try:
        text = read_file(home / EVENTS_FILE, JOB_BYTES)
    except OSError:
        return []
    found = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            event = json.loads(line)
            if isinstance(event, dict) and isinstance(event.get("metadata"), dict):
                found.append(event)
    return found


@contextlib.contextmanager
def locked(home: Path) -> Iterator[None]:
    """Create the folder of a run, and hold its lock.

    The kernel releases the lock when the process ends, even if it is killed.

    Raises:
        ClusterError: The folder cannot be written, or another process runs the job there.
    """
    _check(home)
    with (home / LOCK_FILE).open("a+", encoding="ascii", errors="replace") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            owner = file.read(_NUMBER_BYTES).strip()
            process = f" (process {owner})" if owner.isdigit() else ""
            raise ClusterError(
                f"{home.name} already runs here{process}; wait for its end, stop it, or select"
                " another folder with --dir"
            ) from error
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _check(home: Path) -> None:
    """Create the folder, and check that files can be written there.

    Raises:
        ClusterError: The folder cannot be created or written.
    """
    try:
        home.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=home).close()
        (home / LOCK_FILE).touch()
    except OSError as error:
        sentence = f"--dir: must name a folder that can be written, got {home}: {error.strerror}"
        raise ClusterError(sentence) from error


def run_directory_of(job: DDPJob, volumes: Path) -> Path:
    """Return the directory of a run on this machine.

    Args:
        job: The job of the run.
        volumes: Folder that has the claims of the run as folders.

    Raises:
        RequestError: The job has no checkpoints.
    """
    claim = claim_name(job)
    if claim is None:
        raise RequestError(f"{job.metadata.name} has no spec.checkpoint, so it saves nothing")
    return volumes / claim / checkpoint_path(job)
