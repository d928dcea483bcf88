"""Read the CPU and memory limits and use of this container, and raise the OOM score of a rank."""

import contextlib
import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_NO_LIMIT = 1 << 60
"""Smallest cgroup v1 memory limit, in bytes, that stands for no limit."""
_OOM_SCORE_INCREASE = 300
"""Increase of a rank's oom_score_adj, in thousandths of the memory limit."""


def cpu_count(cgroup: Path = _CGROUP) -> int:
    """Return the number of CPUs that this container may use: its quota or else its CPU affinity.

    Affinity and `os.cpu_count` show the host's cores. Only the cgroup shows the quota.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    available = affinity or 1
    quota = _quota_v2(cgroup) or _quota_v1(cgroup)
    return max(1, min(available, int(quota))) if quota else available


def threads_per_rank(cpus: int, local_ranks: int) -> int:
    """Return the number of threads per rank with which all local ranks fit the CPU count."""
    return max(1, cpus // local_ranks)


def throttled_seconds(cgroup: Path = _CGROUP) -> float:
    """Return the seconds for which the CPU quota throttled this container, 0 without a quota."""
    for file, key, unit in (
        (cgroup / "cpu.stat", "throttled_usec", 1e-6),
        (cgroup / "cpu" / "cpu.stat", "throttled_time", 1e-9),
    ):
        if counts := _counts(file):
            return counts.get(key, 0) * unit
    return 0.0


def run_queue_seconds(file: str = "/proc/thread-self/schedstat") -> float:
    """Return the seconds for which this thread was ready to run and waited for a core.

    Return 0 where the kernel does not count this time. A call takes about 10 µs, because loops call
    it.
    """
    try:
        descriptor = os.open(file, os.O_RDONLY)
    except OSError:
        return 0.0
    try:
        return int(os.read(descriptor, 64).split()[1]) * 1e-9
    finally:
        os.close(descriptor)


def out_of_memory_kills(cgroup: Path = _CGROUP) -> int:
    """Return the number of processes of this container that the kernel killed for lack of memory.

    The kernel may kill one rank and leave the container running. This count is then the only trace.
    """
    for file in (cgroup / "memory.events", cgroup / "memory" / "memory.oom_control"):
        if counts := _counts(file):
            return counts.get("oom_kill", 0)
    return 0


def memory_limit(cgroup: Path = _CGROUP) -> tuple[int, Path] | None:
    """Return the memory limit of this container, in bytes, and its file. None without a limit."""
    for file in (cgroup / "memory.max", cgroup / "memory" / "memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            limit = int(file.read_text())
            return (limit, file) if limit < _NO_LIMIT else None
    return None


def memory_bytes(cgroup: Path = _CGROUP) -> int | None:
    """Return the memory in use by this container, in bytes, without inactive page cache.

    The kubelet evicts pods by the same figure, the working set. Return None if the cgroup files
    cannot be read.
    """
    for file, statistics, key in (
        (cgroup / "memory.current", cgroup / "memory.stat", "inactive_file"),
        (
            cgroup / "memory" / "memory.usage_in_bytes",
            cgroup / "memory" / "memory.stat",
            "total_inactive_file",
        ),
    ):
        try:
            used = int(file.read_text())
        except (OSError, ValueError):
            continue
        return max(0, used - _counts(statistics).get(key, 0))
    return None


def prefer_for_oom_kill(process: Path = Path("/proc/self")) -> None:
    """Make the kernel kill this process before the container's others if memory runs out.

    By default the kernel kills the largest process. That is often the standby, because its own
    imports count towards its size, and without a standby the next attempt starts cold. A process
    may raise its own oom_score_adj (proc(5)) without privileges.
    """
    score = process / "oom_score_adj"
    with contextlib.suppress(OSError, ValueError):
        score.write_text(str(min(1000, int(score.read_text()) + _OOM_SCORE_INCREASE)))


def _counts(file: Path) -> dict[str, int]:
    """Return the name-number pairs of a cgroup file, empty if the file cannot be read."""
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
