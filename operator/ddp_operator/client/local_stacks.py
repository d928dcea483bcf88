"""Read the stacks of the ranks of a local run while they train. Linux only.

Each rank keeps the file open into which its signal handler writes the stacks of its threads. So the
kernel's list of open files names the process of each rank.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ddp_operator.client.errors import RequestError
from ddp_operator.client.rank_stacks import RankStack
from ddp_wire.stacks import without_launcher
from ddp_wire.variables import Env

_SUFFIX = ".stacks"
_ANSWER_SECONDS = 2.0
_POLL_SECONDS = 0.05
_LONGEST = 64 << 10


@dataclass(frozen=True)
class _Rank:
    node: int
    local_rank: int
    process: int
    file: Path


def read_local_stacks(uid: str, ranks_per_node: int) -> list[RankStack]:
    """Ask all ranks of a run for their stacks, and return them in the order of the ranks.

    Args:
        uid: Uid of the job.
        ranks_per_node: Number of ranks of each node.

    Raises:
        RequestError: This machine does not run Linux.
    """
    if sys.platform != "linux":
        raise RequestError("stacks needs Linux, whose kernel names the files of each process")
    ranks = sorted(_ranks(uid, Path("/proc")), key=lambda one: (one.node, one.local_rank))
    sizes = [_size(one.file) for one in ranks]
    for one in ranks:
        # The rank has registered its handler, because the file exists under its final name.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(one.process, signal.SIGRTMAX)
    end = time.monotonic() + _ANSWER_SECONDS
    found = []
    for one, size in zip(ranks, sizes, strict=True):
        text = _answer(one.file, size, end)
        found.append(RankStack(one.node * ranks_per_node + one.local_rank, text))
    return found


def _ranks(uid: str, processes: Path) -> Iterator[_Rank]:
    """Yield the ranks of a job among all processes that this user may inspect."""
    for folder in processes.glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
            wanted = f"{Env.JOB_UID}={uid}".encode()
            if wanted not in variables:
                continue
            prefix = f"{Env.NODE_INDEX}=".encode()
            node = next(one[len(prefix) :] for one in variables if one.startswith(prefix))
            links = [link.readlink() for link in (folder / "fd").iterdir()]
        except (OSError, StopIteration):
            continue  # The process ended, or belongs to another user.
        for link in links:
            if link.suffix == _SUFFIX and link.stem.isdigit():
                yield _Rank(int(node), int(link.stem), int(folder.name), link)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _answer(file: Path, begin: int, end: float) -> str:
    """Return what a rank has added to its file, once it adds no more."""
    size, now = begin, _size(file)
    while time.monotonic() < end and (now == begin or now != size):
        size = now
        time.sleep(_POLL_SECONDS)
        now = _size(file)
    try:
        with file.open("rb") as stacks:
            stacks.seek(begin)
            return without_launcher(stacks.read(_LONGEST).decode("utf-8", "replace"))
    except OSError:
        return ""
