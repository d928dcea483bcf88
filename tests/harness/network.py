"""The network of the cluster: one bridge with the nodes' addresses, and what others left on it."""

from __future__ import annotations

import socket
import struct
from pathlib import Path
from typing import Final

from tests.harness import paths
from tests.harness.run import command, installed

# kube-proxy's own table; it leaves it behind when it ends.
_PROXY_TABLE: Final = "kube-proxy"
_DNS_LIMIT_S: Final = 0.5
_TYPE_A: Final = 1
_CLASS_IN: Final = 1
_WITHOUT_ERROR: Final = 0


def create(addresses: int) -> None:
    """Make the bridge with the addresses of that many nodes, and the way to Services."""
    batch = [
        f"link add {paths.BRIDGE} type bridge",
        f"link set {paths.BRIDGE} up",
        *(
            f"address add {paths.node_address(number)}/{paths.PREFIX_LENGTH} dev {paths.BRIDGE}"
            for number in range(1, addresses + 1)
        ),
        f"route add {paths.SERVICE_NETWORK} dev {paths.BRIDGE}",
    ]
    command(["ip", "-batch", "-"], "Making the bridge", stdin="\n".join(batch) + "\n")


def remove() -> None:
    """Remove the bridge and kube-proxy's packet filter tables; fine when there are none."""
    if Path("/sys/class/net", paths.BRIDGE).exists():
        command(["ip", "link", "delete", paths.BRIDGE], "Removing the bridge")
    for family in ("ip", "ip6") if installed("nft") else ():
        # Declared first, so that deleting it is no error when it was never there.
        script = f"table {family} {_PROXY_TABLE} {{}}\ndelete table {family} {_PROXY_TABLE}\n"
        command(["nft", "-f", "-"], "Removing kube-proxy's rules", stdin=script)


def reachable(address: str, port: int) -> bool:
    """Tell whether something accepts TCP connections there."""
    try:
        with socket.create_connection((address, port), timeout=_DNS_LIMIT_S):
            return True
    except OSError:
        return False


def resolves(name: str) -> bool:
    """Tell whether the cluster's DNS server answers this name with an address."""
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
