"""Snapshots never cause a process to be killed for lack of memory, whatever the limit is.

The ranks train in a control group with a memory limit, which the kernel enforces.
"""

import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.harness import cgroups
from tests.trainer.rank_processes import Gang, Launcher

MIB = 1 << 20
LIMITS = 20
SHARED = Path("/dev/shm")


@dataclass(frozen=True)
class Group:
    """A control group with a memory limit."""

    path: Path
    shown: str
    """Folder at which a container would see the group."""
    limit: str
    peak: str

    @property
    def kills(self) -> int:
        file = "memory.events" if (self.path / "memory.events").exists() else "memory.oom_control"
        pairs = (line.split() for line in (self.path / file).read_text().splitlines())
        return int(dict(pairs)["oom_kill"])


@pytest.fixture
def group() -> Iterator[Group]:
    roots = [root for root in cgroups.hierarchies() if root.name == "memory"] or [
        root for root in cgroups.hierarchies() if (root / "cgroup.subtree_control").exists()
    ]
    if os.geteuid() != 0 or not roots:
        pytest.skip("control groups need root")
    root, old = roots[0], roots[0].name == "memory"
    path = root / f"ddp-limits-{os.getpid()}"
    try:
        path.mkdir()
    except OSError as error:
        pytest.skip(f"no control group: {error}")
    limit, peak = ("limit_in_bytes", "max_usage_in_bytes") if old else ("max", "peak")
    shown = "/sys/fs/cgroup/memory" if old else "/sys/fs/cgroup"
    if not (path / f"memory.{peak}").exists():
        path.rmdir()
        pytest.skip("the kernel does not measure the peak of a control group")
    yield Group(path, shown, f"memory.{limit}", f"memory.{peak}")
    _empty(path)
    path.rmdir()


def _empty(group: Path) -> None:
    """Kill all processes of a group, and wait until they have ended."""
    deadline = time.monotonic() + 20
    while pids := (group / "cgroup.procs").read_text().split():
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        assert time.monotonic() < deadline, f"still running: {pids}"
        time.sleep(0.01)


@pytest.fixture
def memory() -> Iterator[Path]:
    """Return a folder in memory."""
    path = SHARED / f"ddp-limits-{os.getpid()}"
    path.mkdir()
    yield path
    shutil.rmtree(path)


def trained(
    launcher: Launcher, group: Group, memory: Path, limit: int, *, burst: int, every: int | None
) -> Gang:
    """Train with a memory limit. The run must not end by a signal."""
    shutil.rmtree(memory)
    memory.mkdir()
    (group.path / group.limit).write_text(str(limit))
    settings = {"max_steps": 20, "global_batch": 8, "task": {"burst_mib": burst}, "device": "cpu",
                "checkpoint": {"memory_every_steps": every}}  # fmt: skip
    arguments = ["--task=limit_probes:build", f"--config={json.dumps(settings)}"]
    document = {"group": str(group.path), "shown": group.shown, "arguments": arguments}
    gang = launcher.call(
        "limit_probes:run_limited", document, world=None, DDP_RECORDS_DIR=str(memory)
    )
    before = group.kills
    codes = gang.wait(200)
    assert group.kills == before, f"killed at {limit / MIB:.0f} MiB: {gang.err(0)}"
    assert codes == [0], gang.err(0)
    return gang


def sentences(gang: Gang) -> list[str]:
    return [line for line in gang.err(0).splitlines() if "copied to memory" in line]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("burst", [0, 200])
def test_no_limit_kills_a_run_that_would_live_without_snapshots(
    launcher: Launcher, group: Group, memory: Path, burst: int
) -> None:
    trained(launcher, group, memory, 1 << 40, burst=burst, every=None)
    need = int((group.path / group.peak).read_text())
    first, last = need + 24 * MIB, need + 480 * MIB
    off = []
    for number in range(LIMITS):
        limit = first + (last - first) * number // (LIMITS - 1)
        gang = trained(launcher, group, memory, limit, burst=burst, every=1)
        found = sentences(gang)
        assert len(found) <= 1, found
        kept = list(memory.glob("step-*.attempt-*"))
        assert bool(found) != (len(kept) == 2), (limit - need, found, kept)
        off.append(bool(found))
        print(f"{limit / MIB:.0f} MiB, {(limit - need) / MIB:.0f} more than without snapshots:"
              f" {found or 'on'}")  # fmt: skip
    assert off == sorted(off, reverse=True)
    assert off[0]
    assert not off[-1]
