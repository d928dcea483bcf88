"""TCP ports for servers that a test starts."""

import random
import socket

_given: set[int] = set()


def free_port(count: int = 1) -> int:
    """Return the first of `count` consecutive ports on which no process listens.

    The ports are below the range of outgoing connections, so that no such connection takes a port
    before the server listens. No port is returned twice. A server may listen on all addresses, so
    each port is free on all addresses. The choice does not use Python's generator, because tests
    seed it, and two test runs with one seed would choose the same ports.
    """
    chance = random.SystemRandom()
    while True:
        first = chance.randrange(10_000, 28_000)
        ports = set(range(first, first + count))
        if not ports & _given and all(_is_free(port) for port in ports):
            _given.update(ports)
            return first


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
