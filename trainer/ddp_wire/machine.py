"""What the machine grants this container."""

import contextlib
import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_RANK_SCORE = 300
"""In thousandths of the memory limit, by which a rank seems larger than it is."""


def cpu_count(cgroup: Path = _CGROUP) -> int:
    """CPUs that this container may use: its quota where one is set, else what it may run on.

    Affinity and `os.cpu_count` show the host's cores; only the cgroup knows the quota.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    available = affinity or 1
    quota = _quota_v2(cgroup) or _quota_v1(cgroup)
    return max(1, min(available, int(quota))) if quota else available


def threads_per_rank(cpus: int, local_ranks: int) -> int:
    """Compute threads for each rank so that all together fit the quota."""
    return max(1, cpus // local_ranks)


def throttled_seconds(cgroup: Path = _CGROUP) -> float:
    """Seconds that this container stood still because its CPU quota was used up; 0 without one."""
    for file, key, unit in (
        (cgroup / "cpu.stat", "throttled_usec", 1e-6),
        (cgroup / "cpu" / "cpu.stat", "throttled_time", 1e-9),
    ):
        if counts := _counts(file):
            return counts.get(key, 0) * unit
    return 0.0


def out_of_memory_kills(cgroup: Path = _CGROUP) -> int:
    """How many processes of this container the kernel has ended for want of memory.

    It picks a rank, not the container, which lives on: this count is the only trace.
    """
    for file in (cgroup / "memory.events", cgroup / "memory" / "memory.oom_control"):
        if counts := _counts(file):
            return counts.get("oom_kill", 0)
    return 0


def fall_first(process: Path = Path("/proc/self")) -> None:
    """Have the kernel end this process before the container's others when memory runs out.

    It takes the largest. The standby, which has touched all that it imported, is often larger than
    its forks, and a container without it starts the next attempt cold. Raising one's own score
    (proc(5), oom_score_adj) needs no right.
    """
    score = process / "oom_score_adj"
    with contextlib.suppress(OSError, ValueError):
        score.write_text(str(min(1000, int(score.read_text()) + _RANK_SCORE)))


def _counts(file: Path) -> dict[str, int]:
    """A cgroup's file of a name and a number per line; empty where it is not to be had."""
    try:
        pairs = (line.split() for line in file.read_text().splitlines())
        return {name: int(number) for name, number in pairs}
    except (OSError, ValueError):
        return {}


def _quota_v2(cgroup: Path) -> float | None:
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def _quota_v1(cgroup: Path) -> float | None:
    try:
        quota = int((cgroup / "cpu" / "cpu.cfs_quota_us").read_text())
        period = int((cgroup / "cpu" / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return quota / period if quota > 0 else None
