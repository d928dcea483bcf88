"""What NCCL says of its way through the network.

NCCL has no call that tells it, only lines of its log at level INFO. They are written to a file of
this rank's own, unless the user has asked for a log: that one is left where it is wanted.
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
class Route:
    """How packets of NCCL travel between nodes."""

    network: str | None = None
    """Transport, as `IB` or `Socket`."""
    interfaces: tuple[str, ...] = ()
    """Devices of the transport, or the interface of its sockets."""


def parse(log: str) -> Route:
    """Reads the lines of NCCL at level INFO; nothing where it says nothing."""
    network = _NETWORK.search(log)
    devices = _INFINIBAND.search(log)
    sockets = _SOCKETS.search(log)
    name = network[1] if network else None
    if name and not name.startswith("Socket") and devices:
        return Route(name, tuple(_DEVICE.findall(devices[1])))
    return Route(name, (sockets[1],) if sockets else ())


def listen(environ: MutableMapping[str, str] = os.environ) -> Path | None:
    """Makes NCCL tell of its network; to be called before the process group.

    Returns:
        The file in which it will stand; nothing where the user has the log sent elsewhere.
    """
    if stated := environ.get("NCCL_DEBUG_FILE"):
        told = environ.get("NCCL_DEBUG", "").upper() in {"INFO", "TRACE"}
        return _expanded(stated) if told else None
    if "NCCL_DEBUG" in environ:
        return None
    handle, name = tempfile.mkstemp(prefix="nccl-", suffix=".log")
    os.close(handle)
    environ.update({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET", "NCCL_DEBUG_FILE": name})
    return Path(name)


def read(path: Path | None) -> Route:
    """What NCCL has told so far."""
    try:
        return parse(path.read_text(errors="replace")) if path else Route()
    except OSError:
        return Route()


def _expanded(name: str) -> Path:
    return Path(name.replace("%h", socket.gethostname()).replace("%p", str(os.getpid())))
