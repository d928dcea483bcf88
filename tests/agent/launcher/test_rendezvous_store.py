"""The rendezvous store listens on the address of its agent only."""

import socket

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from ddp_agent.launcher import rendezvous_store
from tests.harness.ports import free_port


@pytest.mark.parametrize(("address", "other"), [("127.0.0.1", "127.0.0.2"), ("::1", "127.0.0.1")])
def test_store_is_reached_at_the_address_of_the_agent_only(address: str, other: str) -> None:
    """A pod with hostNetwork in a cluster of IPv6 has an address of IPv6."""
    port = free_port()
    store = rendezvous_store._store(address, port, address)
    TCPStore(address, port, is_master=False).set("key", "value")
    assert store.get("key") == b"value"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((other, port), timeout=5)
