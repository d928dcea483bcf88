"""Check before the rendezvous that this rank can reach node 0, and find its interface."""

import fcntl
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

from ddp_trainer.errors import ReportedError
from ddp_trainer.ranks.environment import Ranks

PATIENCE_SECONDS = 8.0
"""Maximum seconds to wait until a name resolves or a host answers."""

_POLL_SECONDS = 0.5
_GET_ADDRESS = 0x8915
"""Number of the Linux ioctl SIOCGIFADDR, which returns the address of a network interface."""
_INFINIBAND = Path("/sys/class/infiniband")


def wait_until_reachable(
    ranks: Ranks, environ: Mapping[str, str], patience: float = PATIENCE_SECONDS
) -> None:
    """Wait until node 0's name resolves and its host answers.

    A refused connection counts as an answer, because rank 0 may not listen on its port yet.

    Args:
        ranks: This process's rank.
        environ: Environment with MASTER_ADDR and MASTER_PORT.
        patience: Maximum wait in seconds.

    Raises:
        ReportedError: If node 0 is still unreachable. This rank prints the error itself.
    """
    host, port = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
    if not ranks.launched or ranks.is_first or not host or not port.isdecimal():
        return
    deadline = time.monotonic() + patience
    while True:
        left = max(0.1, deadline - time.monotonic())
        try:
            with socket.create_connection((host, int(port)), timeout=left):
                return
        except ConnectionRefusedError:
            return
        except OSError as error:
            reason = error
        if time.monotonic() + _POLL_SECONDS > deadline:
            raise _unreachable(ranks.rank, host, port, reason)
        time.sleep(_POLL_SECONDS)


def _unreachable(rank: int, host: str, port: str, reason: OSError) -> ReportedError:
    if isinstance(reason, socket.gaierror):
        text = f'cannot resolve "{host}", the name of node 0: {reason.strerror}'
    else:
        why = "no answer" if isinstance(reason, TimeoutError) else reason.strerror
        text = f"cannot reach node 0 at {host}:{port}: {why}; does a firewall block the port?"
    return ReportedError(f"network: rank {rank} {text}", rank_specific=True)


def interface_to(host: str) -> str | None:
    """Return the name of the network interface that routes to `host`, without sending a packet.

    Args:
        host: Name or IPv4 address.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))
            address = probe.getsockname()[0]
            named = [name for _, name in socket.if_nameindex()]
            return next((n for n in named if _address_of(probe, n) == address), _loopback(address))
        except OSError:
            return None


def infiniband_devices(folder: Path = _INFINIBAND) -> list[str]:
    """Return the names of the InfiniBand and RoCE devices that this container can access."""
    return sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []


def _loopback(address: str) -> str | None:
    return "lo" if address.startswith("127.") else None


def _address_of(probe: socket.socket, name: str) -> str | None:
    request = struct.pack("256s", name.encode()[:15])
    try:
        return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _GET_ADDRESS, request)[20:24])
    except OSError:
        return None
