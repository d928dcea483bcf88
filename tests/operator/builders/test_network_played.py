"""Tests of which clients reach a job's pods with and without its NetworkPolicy.

Packet rules between network namespaces enforce the policy: see `tests.fault_player`.
"""

from collections.abc import Iterator

import pytest

from ddp_operator.builders import names
from ddp_operator.builders.network import build_network_policy
from ddp_wire.contract import AGENT_PORT, BARRIER_PORT, RENDEZVOUS_PORT_BASE
from tests.fault_player.network_policies import PlayedNetwork, PlayedPod, played_network
from tests.operator.support import AGENT_CLIENTS, new_job

pytestmark = pytest.mark.api  # It needs Linux, root and nftables, but no API server.

JOB = new_job()
OURS = names.labels(JOB)
OPERATOR = AGENT_CLIENTS[0].to_manifest()["podSelector"]["matchLabels"]
PROMETHEUS = {"app.kubernetes.io/name": "prometheus"}
COLLECTIVE_PORT = 45123
PORTS = [AGENT_PORT, BARRIER_PORT, RENDEZVOUS_PORT_BASE + 1, COLLECTIVE_PORT]
NODE_0 = PlayedPod("node-0", "team-a", OURS, "10.213.0.10")
PODS = {
    "peer of the job": (PlayedPod("node-1", "team-a", OURS, "10.213.0.11"), PORTS),
    "stranger in the job's namespace": (
        PlayedPod("stranger", "team-a", {"app": "x"}, "10.213.0.12"),
        [],
    ),
    "pod of another job": (
        PlayedPod("other", "team-a", OURS | {"ddp-trainer.dev/job-uid": "x"}, "10.213.0.13"),
        [],
    ),
    "pod with the job's labels in another namespace": (
        PlayedPod("faraway", "team-b", OURS, "10.213.0.14"),
        [],
    ),
    "operator": (PlayedPod("operator", "ddp-system", OPERATOR, "10.213.0.15"), [AGENT_PORT]),
    "pod with the operator's labels in another namespace": (
        PlayedPod("impostor", "team-b", OPERATOR, "10.213.0.16"),
        [],
    ),
    "stranger in the operator's namespace": (
        PlayedPod("neighbour", "ddp-system", {}, "10.213.0.17"),
        [],
    ),
    "Prometheus": (PlayedPod("scraper", "monitoring", PROMETHEUS, "10.213.0.18"), [AGENT_PORT]),
}
"""Pods, with the ports of node 0's pod that they may reach."""


@pytest.fixture(scope="module")
def network() -> Iterator[PlayedNetwork]:
    pods = [NODE_0, *(pod for pod, _ in PODS.values())]
    with played_network(pods) as made, made.listening(NODE_0, PORTS):
        yield made


@pytest.fixture(scope="module")
def reached_without_a_policy(network: PlayedNetwork) -> dict[str, list[int]]:
    return {name: network.reached_ports(pod, NODE_0) for name, (pod, _) in PODS.items()}


@pytest.fixture(scope="module")
def enforced(
    network: PlayedNetwork, reached_without_a_policy: dict[str, list[int]]
) -> PlayedNetwork:
    assert reached_without_a_policy
    network.enforce([build_network_policy(JOB, AGENT_CLIENTS)])
    return network


@pytest.mark.parametrize("name", PODS)
def test_pod_reaches_only_the_ports_that_the_policy_opens_for_it(
    reached_without_a_policy: dict[str, list[int]], enforced: PlayedNetwork, name: str
) -> None:
    pod, allowed = PODS[name]
    assert reached_without_a_policy[name] == PORTS, "without the policy everybody reaches the store"
    assert enforced.reached_ports(pod, NODE_0) == allowed


def test_kubelet_on_the_same_machine_still_probes_the_agent(
    enforced: PlayedNetwork,
) -> None:
    assert AGENT_PORT in enforced.reached_ports(None, NODE_0)
