"""Measure the memory that is free for the state of a run.

Files under /dev/shm are limited by their file system, by the memory limit of the container and by
the memory of the node. Beyond the first limit a write fails. Beyond the others the kernel ends a
process. So a writer of such files must leave free what the ranks may still need.
"""

import contextlib
import os
from pathlib import Path

from ddp_wire.machine import memory_bytes, memory_limit

_MIB = 1 << 20
_STATUS = Path("/proc/self/status")
_NODE = Path("/proc/meminfo")


def free(folder: Path) -> dict[str, int]:
    """Return the free bytes for files in a folder in memory, by the place that limits them."""
    status = os.statvfs(folder)
    found = {"the memory file system": status.f_bavail * status.f_frsize}
    limit, used = memory_limit(), memory_bytes()
    if limit is not None and used is not None:
        found["the container's memory limit"] = limit[0] - used
    available = _kibibytes(_NODE, "MemAvailable")
    if available is not None:
        found["the node"] = available
    return found


def shortage(folder: Path, needed: int, reserve: int) -> str | None:
    """Return a sentence without its subject if memory is missing, else None.

    Args:
        folder: A folder in memory.
        needed: Bytes to write.
        reserve: Bytes that must stay free.
    """
    place, left = min(free(folder).items(), key=lambda item: item[1])
    if needed + reserve <= left:
        return None
    return (
        f"it needs {needed / _MIB:,.0f} MiB and {reserve / _MIB:,.0f} MiB of reserve, and {place}"
        f" has {max(0, left) / _MIB:,.0f} MiB left"
    )


def past_peak(status: Path = _STATUS) -> int:
    """Return the bytes that this process has used at its peak beyond its use now.

    It will probably need them again, for example for the activations of the next pass.
    """
    peak, now = _kibibytes(status, "VmHWM"), _kibibytes(status, "VmRSS")
    return 0 if peak is None or now is None else max(0, peak - now)


def _kibibytes(file: Path, key: str) -> int | None:
    """Return the bytes in a line `key: N kB` of a file, or None without it."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in file.read_text().splitlines():
            if line.startswith(f"{key}:"):
                return int(line.split()[1]) << 10
    return None
