"""Read from NCCL's log which network transport and interfaces NCCL uses.

NCCL has no function that returns these facts; it only logs them at level INFO. Each rank writes
this log to its own file, unless the user has configured the log in the environment.
"""

import os
import re
import socket
import tempfile
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path

_NETWORK = re.compile(r"NCCL INFO Using network (.+?)\s*$", re.MULTILINE)
_SOCKETS = re.compile(r"NCCL INFO (?:NET/Socket|Bootstrap) ?: Using (?:\[\d+\])?([\w.-]+):")
_INFINIBAND = re.compile(r"NCCL INFO NET/IB ?: Using ((?:\[\d+\][\w.-]+:\d+/\w+(?: \[RO\])?\s*)+)")
_DEVICE = re.compile(r"\[\d+\]([\w.-]+):\d+/")


@dataclass(frozen=True, slots=True)
class NcclRoute:
    """Network path that NCCL uses between nodes."""

    network: str | None = None
    """Name of the transport, for example `IB` or `Socket`."""
    interfaces: tuple[str, ...] = ()
    """Names of the InfiniBand devices, or of the network interface of the sockets."""


def parse(log: str) -> NcclRoute:
    """Return the route that an NCCL log at level INFO shows. Unknown parts stay empty."""
    network = _NETWORK.search(log)
    devices = _INFINIBAND.search(log)
    sockets = _SOCKETS.search(log)
    name = network[1] if network else None
    if name and not name.startswith("Socket") and devices:
        return NcclRoute(name, tuple(_DEVICE.findall(devices[1])))
    return NcclRoute(name, (sockets[1],) if sockets else ())


def enable(environ: MutableMapping[str, str] = os.environ) -> Path | None:
    """Make NCCL log its network path. Call this before the process group is created.

    Returns:
        Path of the log file, which the user may have chosen. None if the user's settings disable
        the log or send it to standard output.
    """
    if file := environ.get("NCCL_DEBUG_FILE"):
        logs_network = environ.get("NCCL_DEBUG", "").upper() in {"INFO", "TRACE"}
        return _expanded(file) if logs_network else None
    if "NCCL_DEBUG" in environ:
        return None
    handle, name = tempfile.mkstemp(prefix="nccl-", suffix=".log")
    os.close(handle)
    environ.update({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET", "NCCL_DEBUG_FILE": name})
    return Path(name)


def read(path: Path | None) -> NcclRoute:
    """Return the route that NCCL has written to its log so far."""
    try:
        return parse(path.read_text(errors="replace")) if path else NcclRoute()
    except OSError:
        return NcclRoute()


def _expanded(name: str) -> Path:
    return Path(name.replace("%h", socket.gethostname()).replace("%p", str(os.getpid())))
