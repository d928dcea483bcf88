"""What a run left behind, for a judgement after the event: who trained when, and from where."""

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
class Life:
    """One attempt, as its rank 0 told it line by line on the shared volume. Times in Unix seconds.

    No rank can do an update without all others, so rank 0's updates are the gang's.
    """

    attempt: int
    updates: list[float] = field(default_factory=list)
    """When it told of an update."""
    saved: list[int] = field(default_factory=list)
    """Steps that it committed."""
    started: float | None = None
    resumed_from: int | None = None


def read_lives(run_directory: Path) -> list[Life]:
    """All attempts that left a word in the logs of a run's directory, by number."""
    found = []
    for folder in (run_directory / "logs").glob("attempt-*"):
        match = _ATTEMPT.fullmatch(folder.name)
        if match:
            life = Life(int(match[1]))
            for event in _events(folder):
                _note(life, event)
            found.append(life)
    return sorted(found, key=lambda life: life.attempt)


def _note(life: Life, event: JSON) -> None:
    match event["event"]:
        case "start":
            life.started = event["time"]
        case "resume":
            life.resumed_from = event["step"]
        case "progress":
            life.updates.append(event["time"])
        case "checkpoint":
            life.saved.append(event["step"])
        case _:
            pass


def _events(folder: Path) -> Iterator[JSON]:
    for file in folder.glob("node-*/*/attempt_0/0/stdout.log"):
        for line in file.read_text(encoding="utf-8").splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                continue  # It was killed while it wrote, or is no event.
            if isinstance(event, dict) and event.get("rank") == 0 and "event" in event:
                yield event


class PodWatch:
    """Everything that happens to a job's pods, from a watch of its own."""

    def __init__(self, job: Job, file: Path) -> None:
        self._job, self._file = job, file
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Begin to watch."""
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
        """End the watch."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    @property
    def broke(self) -> bool:
        """Whether the watch ended by itself: then it did not see everything."""
        return self._process is None or self._process.poll() is not None

    def events(self) -> list[JSON]:
        """What was seen so far."""
        text = self._file.read_text(encoding="utf-8")
        decoder, found, at = json.JSONDecoder(), [], 0
        while (at := text.find("{", at)) >= 0:
            try:
                event, at = decoder.raw_decode(text, at)
            except ValueError:
                break  # It is being written.
            found.append(event)
        return found

    def doubled(self) -> list[str]:
        """A sentence for each moment at which two pods of one index lived."""
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
                found.append(f"pods {others[0]} and {metadata['uid']} of index {index} both live")
            living[metadata["uid"]] = index
        return found
