"""Tests of the start barrier in attempts that exclude some nodes of the job."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ddp_agent.config import AgentConfig
from ddp_agent.members import Members
from ddp_agent.network.arrivals import Arrival
from ddp_agent.network.barrier import BarrierServer
from ddp_agent.network.barrier_client import BarrierClient
from ddp_agent.network.barriers import Barriers
from ddp_wire.contract import Env
from tests.agent.network.test_barrier import JOB, SECRET, announce, started
from tests.agent.support import config, members
from tests.harness.ports import free_port


def node_config(home: Path, node: int, port: int = 0) -> AgentConfig:
    return config(
        home,
        **{
            Env.JOB_UID: JOB,
            Env.JOB_SECRET: SECRET,
            Env.NODE_INDEX: str(node),
            Env.NODES: "4",
            Env.AGENT_BIND: "127.0.0.1",
            Env.RENDEZVOUS_HOST: "127.0.0.1",
            Env.ADDRESS_PATTERN: "127.0.0.{index}",
            Env.BARRIER_PORT: str(port),
        },
    )


def seen_by(home: Path, node: int, nodes: set[int], attempt: int = 1) -> Members:
    return members(node_config(home, node), attempt, nodes)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[BarrierServer]:
    """Barrier of node 1 in an attempt of the nodes 1 and 3."""
    made = BarrierServer("127.0.0.1", 0, JOB, nodes=4, secret=SECRET)
    made.expect(seen_by(tmp_path, 1, {1, 3}))
    yield made
    made.close()


def arrive(server: BarrierServer, seen: Members) -> BarrierClient:
    """Return a client of a node, with the members that its order names, after its arrival."""
    client = BarrierClient("127.0.0.1", server.port, JOB, seen.own, secret=SECRET)
    client._digest = seen.digest
    announce(server, client, seen.attempt)
    return client


@pytest.mark.slow
def test_attempt_starts_once_its_members_have_arrived(
    server: BarrierServer, tmp_path: Path
) -> None:
    assert not started(server)
    client = arrive(server, seen_by(tmp_path, 3, {1, 3}))
    assert started(server, client)
    assert server.replaced_node() is None


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [{1, 2, 3}, None], ids=["others", "all"])
def test_barrier_ignores_a_node_that_expects_other_members(
    server: BarrierServer, tmp_path: Path, nodes: set[int] | None
) -> None:
    client = arrive(server, members(node_config(tmp_path, 3), 1, nodes))
    assert not started(server)
    client.close()


def test_attempt_ends_when_a_node_that_is_no_member_has_an_order_for_it(
    server: BarrierServer, tmp_path: Path
) -> None:
    """An operator of an earlier release orders all nodes, and recovers from this fault."""
    assert started(server, arrive(server, seen_by(tmp_path, 3, {1, 3})))
    other = arrive(server, members(node_config(tmp_path, 2), 1))
    assert server.replaced_node() == 2
    other.close()


def test_attempt_ends_if_a_node_that_is_no_member_arrived_before_the_start(
    server: BarrierServer, tmp_path: Path
) -> None:
    other = arrive(server, members(node_config(tmp_path, 0), 1))
    assert started(server, arrive(server, seen_by(tmp_path, 3, {1, 3})))
    assert server.replaced_node() == 0
    other.close()


def test_arrival_in_a_job_of_fixed_size_has_the_format_of_earlier_releases() -> None:
    arrival = Arrival(job_uid=JOB, attempt=2, node_index=1, agent="a", signature="s")
    text = arrival.model_dump_json(by_alias=True, exclude_none=True)
    assert text == (
        '{"job_uid":"uid-1","attempt":2,"node_index":1,"agent":"a","news":false,"signature":"s"}'
    )


def test_only_the_first_member_serves_the_barrier(tmp_path: Path) -> None:
    made = node_config(tmp_path, 1, free_port())
    barriers = Barriers(made)
    sides = [
        barriers.side_for(members(made, n, nodes))
        for n, nodes in enumerate(({0, 1}, {1, 2}, {0, 1}, {1}), 1)
    ]
    assert [type(side) for side in sides] == [
        BarrierClient,
        BarrierServer,
        BarrierClient,
        BarrierServer,
    ]
    assert sides[0] is sides[2], "the agent keeps its name"
    barriers.leave()


def test_single_node_of_a_job_of_fixed_size_needs_no_barrier(tmp_path: Path) -> None:
    made = config(tmp_path, **{Env.NODES: "1"})
    assert Barriers(made).side_for(members(made)) is None
