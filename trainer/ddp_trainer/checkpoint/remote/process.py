"""Start the processes that access an object store, from rank 0."""

import contextlib
import errno
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from ddp_trainer.checkpoint.format import CheckpointName
from ddp_trainer.checkpoint.remote.fetching import Fetched
from ddp_trainer.checkpoint.remote.mirror import MirrorStatus
from ddp_trainer.checkpoint.volume import volume_error
from ddp_trainer.errors import InputError

_COMMAND = [sys.executable, "-m", "ddp_trainer.checkpoint.remote"]
ALARM_SECONDS = 900.0
"""Seconds behind from which the mirror warns, even without an error."""
RESTART_SECONDS = 60.0
"""Minimum seconds between two starts of the mirror's process."""


def fetch(url: str, directory: Path, newer_than: CheckpointName | None, *, claim: bool) -> Fetched:
    """Copy the newest checkpoint of a store to a run's directory, in a process of its own.

    Args:
        url: Address of the store.
        directory: The run's directory. It must exist.
        newer_than: Newest usable checkpoint of the directory.
        claim: Whether to claim the store for the owner of the directory.

    Raises:
        InputError: If the user must correct the address or the credentials.
        VolumeError: If the store fails.
    """
    options = ["--claim"] if claim else []
    options += ["--newer-than", str(newer_than)] if newer_than else []
    return Fetched(**_run("checkpoint", "fetch", directory, url, options))


def download(url: str, folder: Path) -> Path:
    """Copy what is at an address to an empty folder, in a process of its own.

    Raises:
        InputError: If the user must correct the address or the credentials.
        VolumeError: If the store fails.
    """
    return Path(_run("config: init_from", "download", folder, url, [])["path"])


def _run(subject: str, name: str, directory: Path, url: str, options: list[str]) -> dict[str, Any]:
    command = [*_COMMAND, name, str(directory), url, "--parent", str(os.getpid()), *options]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    try:
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        if "error" not in found:
            return found
    except (IndexError, ValueError, TypeError):
        found = {"error": f"the process ended with exit code {done.returncode}", "errno": None}
    sentence = f"{subject}: cannot read {url}: {found['error']}"
    if found["errno"] == errno.ENOENT:
        raise InputError(sentence)  # The bucket does not exist.
    raise volume_error(sentence, OSError(found["errno"] or errno.EIO, found["error"]))


class MirrorProcess:
    """The process that mirrors a run's directory. No call waits for it except `finish`."""

    def __init__(self, directory: Path, url: str, *, keep: int, rate: float | None) -> None:
        """Start the process.

        Args:
            directory: The run's directory, which this attempt owns.
            url: Address of the store.
            keep: Number of newest copies to keep.
            rate: Maximum bytes per second. None for no limit.
        """
        self._command = [*_COMMAND, "mirror", str(directory), url, "--keep", str(keep)]
        self._command += ["--parent", str(os.getpid())]
        self._command += ["--rate", str(rate)] if rate is not None else []
        self._url = url
        self._status, self._received = MirrorStatus(), time.monotonic()
        self._warned, self._alarmed = "", False
        self._start()

    def _start(self) -> None:
        self._started = time.monotonic()
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()

    @property
    def status(self) -> MirrorStatus:
        """The newest status, with the seconds that have passed since."""
        status = self._status
        if not status.behind_steps:
            return status
        passed = time.monotonic() - self._received
        return replace(status, behind_seconds=status.behind_seconds + passed)

    def lag(self) -> tuple[int | None, float]:
        """Return the updates in the newest copy, and the seconds that it is behind."""
        status = self.status
        return status.step, status.behind_seconds

    def warning(self) -> str | None:
        """Return a sentence about a new problem, once; None if there is none.

        A process that has ended, for example because the kernel killed it, is started again.
        """
        status = self.status
        code = self._process.poll()
        if code is not None and not status.ended and self._age() > RESTART_SECONDS:
            self._start()
            return f"checkpoint.mirror: its process ended with exit code {code}; it was restarted"
        if status.error and status.error != self._warned:
            self._warned = status.error
            end = "it stops" if status.ended else "it tries again"
            return f"checkpoint.mirror {self._url}: {status.error}; {_lag(status)}, and {end}"
        late = status.behind_seconds > ALARM_SECONDS
        if late and not self._alarmed:
            self._alarmed = True
            return f"checkpoint.mirror {self._url}: {_lag(status)}"
        if not late and not status.error:
            self._warned, self._alarmed = "", False
        return None

    def finish(self, seconds: float) -> str | None:
        """Wait until the newest checkpoint is copied, and end the process.

        Args:
            seconds: Maximum seconds to wait.

        Returns:
            A warning if it is not copied, else None.
        """
        with contextlib.suppress(OSError):
            _stream(self._process.stdin).write("finish\n")
            _stream(self._process.stdin).flush()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        code = self._process.poll()
        self.close()
        if code == 0 and not self.status.ended:
            return None
        reason = f" ({self.status.error})" if self.status.error else ""
        return (
            f"checkpoint.mirror {self._url}: the newest checkpoint was not copied{reason};"
            f" {_lag(self.status)}"
        )

    def close(self) -> None:
        """End the process without waiting for a copy."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        with contextlib.suppress(OSError):
            _stream(self._process.stdin).close()
        _stream(self._process.stdout).close()

    def _age(self) -> float:
        return time.monotonic() - self._started

    def _read(self, process: "subprocess.Popen[str]") -> None:
        for line in _stream(process.stdout):
            with contextlib.suppress(ValueError, TypeError):
                document = json.loads(line)
                if "errno" in document:
                    document = {"error": document["error"], "ended": True}
                self._status, self._received = MirrorStatus(**document), time.monotonic()


def _lag(status: MirrorStatus) -> str:
    return f"the store is {status.behind_steps} updates and {status.behind_seconds:.0f} s behind"


def _stream(stream: IO[str] | None) -> IO[str]:
    if stream is None:
        raise OSError(errno.EPIPE, "the process has no such stream")
    return stream
