"""Reserve loopback addresses and ports for a local run that no other local run uses."""

import errno
import os
import socket

from ddp_operator.cluster.base import ClusterError
from ddp_wire import contract

FIRST_HOST = 100
"""Last number of node 0's address. It has three digits, because torchrun sorts addresses as
strings."""
_LAST_DIGITS = "1{index:02d}"
"""Format of the last number of a node's address, for at most 100 nodes."""
_NETWORKS = 250
_FIRST_RENDEZVOUS_PORT = 12_000


class LocalNetwork:
    """The addresses 127.77.N.x for one number N, which are reserved until `close`."""

    def __init__(self) -> None:
        """Reserve free addresses.

        Raises:
            ClusterError: No such addresses are left.
        """
        self._number, self._reservation = _reserve()

    def close(self) -> None:
        """Release the addresses for other runs."""
        self._reservation.close()

    def address(self, index: int) -> str:
        """Return the loopback address of a node."""
        return self.address_pattern.format(index=index)

    @property
    def address_pattern(self) -> str:
        """Format string of the nodes' addresses, with the field `index`."""
        return f"{_network(self._number)}.{_LAST_DIGITS}"

    @property
    def rendezvous_ports(self) -> int:
        """First port that torchrun's stores use in this run.

        Concurrent runs need different ports as well as different addresses, because a torch store
        listens on all addresses. All ports lie below the range that the kernel assigns to clients.
        """
        return _FIRST_RENDEZVOUS_PORT + self._number * contract.RENDEZVOUS_PORT_COUNT


def _network(number: int) -> str:
    return f"127.77.{number}"


def _reserve() -> tuple[int, socket.socket]:
    """Return the number of a free network, and the socket that reserves it.

    A UDP socket makes the reservation, because the agents need the TCP ports later.

    Raises:
        ClusterError: No network is free.
    """
    start, taken = os.getpid() % _NETWORKS, False
    for offset in range(_NETWORKS):
        number = (start + offset) % _NETWORKS
        node_0 = (f"{_network(number)}.{FIRST_HOST}", contract.AGENT_PORT)
        reservation = socket.socket(type=socket.SOCK_DGRAM)
        try:
            reservation.bind(node_0)
            with socket.socket() as probe:  # A pod of a killed run may still listen.
                probe.bind(node_0)
        except OSError as error:
            reservation.close()
            taken = taken or error.errno == errno.EADDRINUSE
            continue
        return number, reservation
    if taken:
        port = contract.AGENT_PORT
        raise ClusterError(f"port {port} must be free: another program listens on every address")
    raise ClusterError(
        "loopback addresses 127.77.x.y must be usable: on macOS add them first,"
        " for example with `sudo ifconfig lo0 alias 127.77.0.100`"
    )
