"""The harness's control groups: one tree in every hierarchy that holds all its processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.harness.errors import HarnessError
from tests.harness.run import poll

TREE: Final = "ddp-trainer"
_LIMIT_S: Final = 20.0


def hierarchies() -> list[Path]:
    """Return the mount points of all control group hierarchies, version 1 and 2."""
    lines = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    mounts = (line.split() for line in lines)
    return [Path(fields[1]) for fields in mounts if fields[2] in {"cgroup", "cgroup2"}]


def create(name: str) -> str:
    """Create the group for a node's pods in every hierarchy; return its path for the kubelet."""
    mounted = hierarchies()
    only_version_2 = len(mounted) == 1
    for root in mounted:
        for group in (root / TREE, root / TREE / name):
            group.mkdir(exist_ok=True)
            _inherit_cpuset(group)
            if only_version_2:
                _delegate(group.parent)
    return f"/{TREE}/{name}"


def tracking_group(name: str) -> Path:
    """Return the group, in one hierarchy, that tracks processes and their children."""
    group = _tracking_root() / TREE / name
    if not group.is_dir():
        group.mkdir(parents=True)
    return group


def kill(name: str = "") -> None:
    """Kill every process in a group and below it, and wait until all have ended.

    Args:
        name: The group below the harness's own; the whole tree if empty.

    Raises:
        HarnessError: Some processes do not end.
    """

    def none_left() -> bool:
        left = members(name)
        for pid in left:
            _kill_one(pid)
        return not left

    if not poll(none_left, deadline_s=_LIMIT_S, interval_s=0.02):
        raise HarnessError(f"Processes {sorted(members(name))} of the cluster do not end.")


def members(name: str = "") -> set[int]:
    """Return the process ids in a group and below it, over all hierarchies."""
    found: set[int] = set()
    for root in hierarchies():
        for folder in _walk(root / TREE / name):
            found.update(_pids(folder))
    return found


def remove() -> None:
    """Remove the whole tree from every hierarchy. Its processes must have ended.

    Raises:
        HarnessError: A group stays busy.
    """

    def gone() -> bool:
        left = [root / TREE for root in hierarchies() if (root / TREE).is_dir()]
        for top in left:
            for folder in _walk(top):
                _remove_one(folder)
        return not any(top.is_dir() for top in left)

    if not poll(gone, deadline_s=_LIMIT_S):
        raise HarnessError(f"The control groups /{TREE} cannot be removed.")


def _tracking_root() -> Path:
    """Return the pids hierarchy (version 1), which accounts for no memory or CPU, or version 2."""
    mounted = hierarchies()
    if not mounted:
        raise HarnessError("No control group hierarchy is mounted on this machine.")
    return next((root for root in mounted if root.name == "pids"), mounted[0])


def _walk(top: Path) -> Iterator[Path]:
    """Yield the groups below `top` and itself, the deepest first."""
    for folder, _, _ in os.walk(top, topdown=False):
        yield Path(folder)


def _pids(folder: Path) -> set[int]:
    try:
        return {int(line) for line in (folder / "cgroup.procs").read_text().split()}
    except OSError:  # the group was removed at the same time
        return set()


def _kill_one(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _remove_one(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:  # busy until its last process is gone; `remove` tries again
        return


def _inherit_cpuset(group: Path) -> None:
    """Copy the parent's cpuset, because no process can run in an empty one (version 1)."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        file = group / name
        if file.exists() and not (group.parent / "cgroup.controllers").exists():
            file.write_text((group.parent / name).read_text())


def _delegate(group: Path) -> None:
    """Enable all controllers for the children of a group (version 2)."""
    controllers = (group / "cgroup.controllers").read_text().split()
    (group / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in controllers))
