"""Addresses of local runs at the same time."""

import socket

import pytest

from ddp_operator.cluster.base import ClusterError
from ddp_operator.cluster.local.network import FIRST_HOST, LocalNetwork
from ddp_wire import contract


@pytest.fixture(autouse=True)
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    """Let the agents use a port that no local run of another test uses."""
    with socket.create_server(("0.0.0.0", 0)) as server:  # noqa: S104
        free = int(server.getsockname()[1])
    monkeypatch.setattr(contract, "AGENT_PORT", free)
    return free


def test_local_runs_that_start_at_the_same_time_have_different_addresses() -> None:
    first, second = LocalNetwork(), LocalNetwork()
    first.close()
    second.close()
    assert first.address(0) != second.address(0)
    assert first.rendezvous_ports != second.rendezvous_ports


def test_addresses_of_a_run_that_has_ended_are_used_again() -> None:
    first = LocalNetwork()
    first.close()
    second = LocalNetwork()
    second.close()
    assert first.address(0) == second.address(0)


def test_addresses_of_a_pod_that_outlives_its_run_are_not_reused(port: int) -> None:
    first = LocalNetwork()
    with socket.create_server((first.address(0), port)):
        first.close()
        second = LocalNetwork()
    second.close()
    assert first.address(0) != second.address(0)


def test_program_that_listens_on_all_addresses_is_named_in_the_error(port: int) -> None:
    requirement = f"port {port} must be free: another program"
    with (
        socket.create_server(("0.0.0.0", port)),  # noqa: S104
        pytest.raises(ClusterError, match=requirement),
    ):
        LocalNetwork()


def test_local_addresses_of_all_nodes_have_the_same_length() -> None:
    """torchrun sorts the addresses as strings."""
    network = LocalNetwork()
    network.close()
    assert network.address(0).endswith(f".{FIRST_HOST}")
    assert len(network.address(0)) == len(network.address(99))
