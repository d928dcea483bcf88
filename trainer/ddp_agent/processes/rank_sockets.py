"""Check by their connections whether ranks have joined torch's process group.

The ranks of a `command` report nothing. To join, each rank connects to the store at MASTER_PORT,
and keeps this connection while it trains.

Process: agent (loop).
"""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from ddp_wire.processes import descendants

_ESTABLISHED = "01"


def all_connected(pids: Iterable[int], port: int) -> bool:
    """Return whether each process, or a descendant of it, has a connection at a port."""
    return all(_is_connected(pid, port) for pid in pids)


def _is_connected(root: int, port: int) -> bool:
    wanted = {f"socket:[{inode}]" for inode in _inodes(root, port)}
    return bool(wanted) and any(
        link in wanted for pid in (root, *descendants(root)) for link in _links(pid)
    )


def _inodes(pid: int, port: int) -> Iterable[str]:
    """Yield the inodes of all established TCP connections at a port, in a process's network."""
    suffix = f":{port:04X}"
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/net/{name}").read_text(encoding="ascii").splitlines():
                fields = line.split()
                ends = fields[1].endswith(suffix) or fields[2].endswith(suffix)
                if ends and fields[3] == _ESTABLISHED:
                    yield fields[9]


def _links(pid: int) -> Iterable[str]:
    """Yield the link targets of a process's open files."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                yield os.readlink(entry.path)  # noqa: PTH115 (no path: it is only compared)
