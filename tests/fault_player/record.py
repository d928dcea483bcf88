"""Records of a run for the checks after it: its attempts from logs, and its pods from a watch."""

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ddp_wire.contract import LABEL_JOB_NAME, LABEL_NODE_INDEX
from tests.cluster.support import Job
from tests.harness import binaries

JSON = dict[str, Any]

_ATTEMPT = re.compile(r"attempt-(\d+)")


@dataclass
class AttemptRecord:
    """One attempt, from the log of its rank 0 on the shared volume. Times are in Unix seconds.

    Updates of rank 0 represent the gang, because no rank can do an update without all others.
    """

    number: int
    updates: list[float] = field(default_factory=list)
    """Times of updates."""
    saved: list[int] = field(default_factory=list)
    """Steps that the attempt committed."""
    started: float | None = None
    resumed_from: int | None = None


def read_attempts(run_directory: Path) -> list[AttemptRecord]:
    """Return all attempts with logs in a run's directory, by number."""
    found = []
    for folder in (run_directory / "logs").glob("attempt-*"):
        match = _ATTEMPT.fullmatch(folder.name)
        if match:
            attempt = AttemptRecord(int(match[1]))
            for event in _events(folder):
                _add_event(attempt, event)
            found.append(attempt)
    return sorted(found, key=lambda attempt: attempt.number)


def _add_event(attempt: AttemptRecord, event: JSON) -> None:
    match event["event"]:
        case "start":
            attempt.started = event["time"]
        case "resume":
            attempt.resumed_from = event["step"]
        case "progress":
            attempt.updates.append(event["time"])
        case "checkpoint":
            attempt.saved.append(event["step"])
        case _:
            pass


def _events(folder: Path) -> Iterator[JSON]:
    for file in folder.glob("node-*/*/attempt_0/0/stdout.log"):
        for line in file.read_text(encoding="utf-8").splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                continue  # The line is incomplete because of a kill, or is no event.
            if isinstance(event, dict) and event.get("rank") == 0 and "event" in event:
                yield event


class PodWatch:
    """A watch of a job's pods that records every event."""

    def __init__(self, job: Job, file: Path) -> None:
        self._job, self._file = job, file
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Start the watch."""
        selector = f"{LABEL_JOB_NAME}={self._job.name}"
        command = [
            str(binaries.kubectl()), f"--kubeconfig={self._job.cluster.kubeconfig}",
            "-n", self._job.namespace, "get", "pods", "-l", selector,
            "-o", "json", "--watch", "--output-watch-events",
        ]  # fmt: skip
        with self._file.open("wb") as out:
            self._process = subprocess.Popen(command, stdout=out)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the watch."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    @property
    def ended_early(self) -> bool:
        """Whether the watch ended early, so that its record is incomplete."""
        return self._process is None or self._process.poll() is not None

    def events(self) -> list[JSON]:
        """Return the events so far."""
        text = self._file.read_text(encoding="utf-8")
        decoder, found, at = json.JSONDecoder(), [], 0
        while (at := text.find("{", at)) >= 0:
            try:
                event, at = decoder.raw_decode(text, at)
            except ValueError:
                break  # kubectl is still writing this event.
            found.append(event)
        return found

    def duplicate_pods(self) -> list[str]:
        """Return a message for each moment at which two pods of one index were active."""
        found = []
        living: dict[str, str] = {}
        for event in self.events():
            metadata = event["object"]["metadata"]
            ended = event["object"]["status"].get("phase") in {"Succeeded", "Failed"}
            index = metadata["labels"][LABEL_NODE_INDEX]
            if event["type"] == "DELETED" or ended:
                living.pop(metadata["uid"], None)
                continue
            others = [u for u, i in living.items() if i == index and u != metadata["uid"]]
            if others and metadata["uid"] not in living:
                found.append(
                    f"pods {others[0]} and {metadata['uid']} of index {index} are both active"
                )
            living[metadata["uid"]] = index
        return found
