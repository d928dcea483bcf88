"""The cluster's network: one bridge with the nodes' addresses."""

from __future__ import annotations

import socket
import struct
from pathlib import Path
from typing import Final

from tests.harness import paths
from tests.harness.run import command, installed

# The table that kube-proxy leaves behind when it ends.
_PROXY_TABLE: Final = "kube-proxy"
_DNS_LIMIT_S: Final = 0.5
_TYPE_A: Final = 1
_CLASS_IN: Final = 1
_WITHOUT_ERROR: Final = 0


def create(addresses: int) -> None:
    """Create the bridge with the addresses of that many nodes, and the route to Services."""
    batch = [
        f"link add {paths.BRIDGE} type bridge",
        f"link set {paths.BRIDGE} up",
        *(
            f"address add {paths.node_address(number)}/{paths.PREFIX_LENGTH} dev {paths.BRIDGE}"
            for number in range(1, addresses + 1)
        ),
        f"route add {paths.SERVICE_NETWORK} dev {paths.BRIDGE}",
    ]
    command(["ip", "-batch", "-"], "Creating the bridge", stdin="\n".join(batch) + "\n")


def remove() -> None:
    """Remove the bridge and kube-proxy's packet filter tables if they exist."""
    if Path("/sys/class/net", paths.BRIDGE).exists():
        command(["ip", "link", "delete", paths.BRIDGE], "Removing the bridge")
    for family in ("ip", "ip6") if installed("nft") else ():
        # Declare the table first, because deleting a missing table is an error.
        script = f"table {family} {_PROXY_TABLE} {{}}\ndelete table {family} {_PROXY_TABLE}\n"
        command(["nft", "-f", "-"], "Removing kube-proxy's rules", stdin=script)


def reachable(address: str, port: int) -> bool:
    """Return whether a process accepts TCP connections at this address."""
    try:
        with socket.create_connection((address, port), timeout=_DNS_LIMIT_S):
            return True
    except OSError:
        return False


def resolves(name: str) -> bool:
    """Return whether the cluster's DNS server answers this name with an address."""
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    header = struct.pack(">HHHHHH", 1, 0x0100, 1, 0, 0, 0)
    query = header + labels + b"\0" + struct.pack(">HH", _TYPE_A, _CLASS_IN)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(_DNS_LIMIT_S)
        try:
            client.connect((paths.API_ADDRESS, 53))
            client.send(query)
            answer = client.recv(512)
        except OSError:
            return False
    flags, _, answers = struct.unpack(">HHH", answer[2:8])
    return bool(flags & 0xF == _WITHOUT_ERROR and answers > 0)
