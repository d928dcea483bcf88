"""The process of a node that writes checkpoints, without torch: `python -m` of this module.

The ranks of the node have copied their parts to slots: anonymous shared memory whose content is
that of the files (`checkpoint.background`). The process opens the slots of its ranks by
/proc/PID/fd, writes the parts and flushes them. On the node of rank 0 it also begins the
checkpoint, waits for the parts of all nodes, commits, and deletes old checkpoints.

Standard input has one save per line, as JSON (`SaveOrder`). Each line on standard output is a
`Status`.
After an error of the volume the process tries again, as long as it takes. It ends with its parent.
"""

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from ddp_trainer.checkpoint import assembly, retention
from ddp_trainer.checkpoint.fence import Fence
from ddp_trainer.checkpoint.format import CheckpointName, part_name
from ddp_trainer.checkpoint.remote.copying import Pace, RateLimit
from ddp_trainer.config import CheckpointConfig
from ddp_trainer.errors import FencedError, ReportedError
from ddp_wire.processes import end_with_parent

RETRY_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Seconds between two tries. The last one repeats."""
_POLL_SECONDS = 0.05
_REPORT_SECONDS = 0.5
_PIECE = 4 << 20
_RESERVE_BYTES = 16 << 20
"""Space that a save must leave free on the volume."""
_PRIORITY = 5
_TRAILER = 8
"""Bytes of the length at the end of a slot."""


class Lead(BaseModel):
    """What the process on the node of rank 0 needs to commit a checkpoint."""

    documents: dict[str, Any]
    """The JSON documents, by file."""
    known: list[str]
    """Names of the complete checkpoints, oldest first."""
    ratings: dict[str, float | None]
    """How good the evaluation of each checkpoint is, if known."""
    config: CheckpointConfig
    total_bytes: int
    """Bytes of the parts of all nodes."""


class SaveOrder(BaseModel):
    """One save."""

    directory: str
    name: str
    parts: int
    claim: dict[str, Any]
    slots: list[tuple[int, int]]
    """Process and descriptor of each slot of this node that has a part."""
    rate: float | None = None
    """Maximum bytes per second of this node."""
    lead: Lead | None = None


@dataclass(slots=True)
class Status:
    """Progress of a save."""

    save: str
    state: str = "writing"
    """`starting`, `writing`, `waiting` for the parts of other nodes, `failed` until the next try,
    `fenced` or `done`."""
    bytes: int = 0
    """Bytes that this process has written in this try."""
    error: str = ""
    at: float = 0.0
    """Time of the commit."""
    known: list[str] | None = None
    """Names of the complete checkpoints after the commit."""


class Writer:
    """Writer of one save."""

    def __init__(self, job: SaveOrder) -> None:
        self._job = job
        self._directory = Path(job.directory)
        name = CheckpointName.parse(job.name)
        if name is None:
            raise ValueError(f"{job.name} is no name of a checkpoint")
        self._name = name
        self._status = Status(job.claim["save"])
        self._reported = 0.0
        self._pace: Pace = RateLimit(job.rate)

    def run(self) -> None:
        """Write the save, and try again after errors."""
        waits = chain(RETRY_SECONDS, repeat(RETRY_SECONDS[-1]))
        while not self._has_written():
            time.sleep(next(waits))

    def _has_written(self) -> bool:
        """Try to write the save. Return whether no other try is needed."""
        try:
            self._write()
        except FencedError as error:
            self._report("fenced", error=str(error))
        except (OSError, ReportedError) as error:
            self._report("failed", error=str(error))
            return False
        return True

    def _write(self) -> None:
        job, place = self._job, (self._directory, self._name)
        fence = Fence.of_claim(self._directory, job.claim)
        self._status.bytes = 0
        self._report("writing")
        if not assembly.is_committed(*place):
            with contextlib.ExitStack() as stack:  # Closes the slots of a failed try, too.
                opened = (closing(SharedCopy(*each)) for each in job.slots)
                self._write_parts([stack.enter_context(each) for each in opened], fence)
            if job.lead is not None:
                self._finish(job.lead, fence)
        known = self._delete_old(job.lead, fence) if job.lead else None
        at = time.time() if job.lead else 0.0  # It is committed, so no error may follow.
        self._report("done", known=known, at=at)

    def _write_parts(self, slots: "list[SharedCopy]", fence: Fence) -> None:
        """Write the parts of this node. On the node of rank 0 also begin the checkpoint."""
        job, place = self._job, (self._directory, self._name)
        self._check_space(slots)
        if job.lead is not None:
            assembly.begin(*place, job.claim, fence.check)
        begun = partial(assembly.has_begun, *place, job.claim)
        self._wait(begun, "the node of rank 0 has not begun the checkpoint")
        for slot in slots:
            files = {file: self._content(slot, *span) for file, span in slot.files.items()}
            assembly.write_part(*place, (slot.number, job.parts), job.claim, files)

    def _finish(self, lead: Lead, fence: Fence) -> None:
        """Commit the checkpoint when all nodes have written their parts."""
        job, place = self._job, (self._directory, self._name)
        for number in range(1, job.parts + 1):
            missing = f"part {number} of {job.parts} has not come from its node"
            self._wait(partial(assembly.has_part, *place, number, job.claim), missing)
        assembly.finish(*place, job.parts, job.claim, lead.documents, may_commit=fence.check)

    def _delete_old(self, lead: Lead, fence: Fence) -> list[str]:
        """Delete the checkpoints that no policy keeps. Return the names of those that remain."""
        names = [*lead.known, self._job.name]
        known = [name for text in names if (name := CheckpointName.parse(text))]

        def rating(name: CheckpointName) -> float:
            value = lead.ratings.get(str(name))
            return float("nan") if value is None else value

        try:
            left = retention.delete_others(self._directory, known, lead.config, rating, fence.check)
        except OSError:
            left = known  # The next save tries again.
        return [str(name) for name in left]

    def _check_space(self, slots: "list[SharedCopy]") -> None:
        """Raise an error if the volume has too little space for what is not written yet.

        A retry keeps, or replaces, the files of earlier tries. So it does not need their space
        again.
        """
        job, total = self._job, sum(slot.size for slot in slots)
        own = {part_name(file, slot.number, job.parts) for slot in slots for file in slot.files}
        status = os.statvfs(self._directory)
        free = status.f_bavail * status.f_frsize
        # The lead checks for all nodes, so the files of all parts count.
        files = own if job.lead is None else None
        held = assembly.held_bytes(self._directory, self._name, files)
        total = total if job.lead is None else max(total, job.lead.total_bytes)
        needed = max(0, total - held) + _RESERVE_BYTES
        if free < needed:
            raise OSError(
                f"the checkpoint needs {needed / 2**20:,.0f} MiB, and the volume has only"
                f" {free / 2**20:,.0f} MiB free"
            )

    def _wait(self, ready: Callable[[], bool], reason: str) -> None:
        while not ready():
            self._progress("waiting", reason)
            time.sleep(_POLL_SECONDS)

    def _content(self, slot: "SharedCopy", begin: int, size: int) -> Iterator[bytes]:
        """Yield the content of a file in a slot, at the limited rate."""
        end = begin + size
        while begin < end:
            piece = os.pread(slot.descriptor, min(_PIECE, end - begin), begin)
            if not piece:
                raise OSError("a slot is shorter than its description")
            self._pace(len(piece))
            yield piece
            begin += len(piece)
            self._status.bytes += len(piece)
            self._progress("writing")

    def _progress(self, state: str, error: str = "") -> None:
        if time.monotonic() - self._reported >= _REPORT_SECONDS:
            self._report(state, error=error)

    def _report(self, state: str, **fields: Any) -> None:
        self._reported = time.monotonic()
        self._status.state = state
        print(json.dumps(asdict(self._status) | fields), flush=True)


class SharedCopy:
    """The slot of a rank, opened for reading."""

    def __init__(self, pid: int, descriptor: int) -> None:
        self.descriptor = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
        end = os.fstat(self.descriptor).st_size - _TRAILER
        length = int.from_bytes(os.pread(self.descriptor, _TRAILER, end), "little")
        document = json.loads(os.pread(self.descriptor, length, end - length))
        self.number: int = document["number"]
        self.files: dict[str, tuple[int, int]] = document["files"]
        self.size = sum(size for _, size in self.files.values())

    def close(self) -> None:
        """Close the slot."""
        os.close(self.descriptor)


def main() -> None:
    """Write the saves that arrive on standard input, one after another."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Its parent saves before it ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(int(sys.argv[1]))
    os.nice(_PRIORITY)
    for line in sys.stdin:
        Writer(SaveOrder.model_validate_json(line)).run()


if __name__ == "__main__":
    main()
