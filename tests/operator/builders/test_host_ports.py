"""Pods on the network of their Kubernetes nodes have the ports of their job's block."""

from typing import Any

import pytest

from ddp_agent.config import AgentConfig
from ddp_operator.api.job import DDPJob
from ddp_operator.builders.host_ports import PORTS_PER_JOB, PortRange, ports_of
from ddp_operator.builders.pod import build_pod
from ddp_operator.reconcile.children import fresh_pods
from ddp_wire.contract import AGENT_PORT, BARRIER_PORT, RENDEZVOUS_PORT_BASE, rendezvous_port
from tests.operator.support import DEFAULTS, new_job, with_status

HOST = {"network": {"hostNetwork": True}}
RANGE = PortRange(20_000, 20_000 + 3 * PORTS_PER_JOB - 1)


def job_with_block(first: int | None = 20_066, **spec: Any) -> DDPJob:
    job = new_job(nodes=2, **(HOST | spec))
    return with_status(job, attempt=1, pods=fresh_pods(job, DEFAULTS, first))


def variables(pod: dict[str, Any]) -> dict[str, Any]:
    env = pod["spec"]["containers"][0]["env"]
    return {e["name"]: e.get("value", e.get("valueFrom")) for e in env}


def test_pod_uses_the_network_and_the_block_of_ports() -> None:
    pod = build_pod(job_with_block(), 1, 1, DEFAULTS)
    spec, worker = pod["spec"], pod["spec"]["containers"][0]
    assert (spec["hostNetwork"], spec["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert worker["ports"] == [
        {"name": "agent", "containerPort": 20_066},
        {"name": "barrier", "containerPort": 20_067},
    ]
    assert worker["readinessProbe"]["httpGet"]["port"] == "agent"
    assert pod["metadata"]["annotations"]["prometheus.io/port"] == "20066"
    found = variables(pod)
    assert found["DDP_AGENT_BIND"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    texts = {name: value for name, value in found.items() if isinstance(value, str)}
    config = AgentConfig.from_environment(texts | {"DDP_AGENT_BIND": "10.0.0.7"})
    assert (config.port, config.barrier_port, config.bind) == (20_066, 20_067, "10.0.0.7")
    stores = {rendezvous_port(config.rendezvous_port_base, attempt) for attempt in range(500)}
    used = {config.port, config.barrier_port, *stores}
    assert used == set(range(20_066, 20_066 + PORTS_PER_JOB))


def test_pod_with_a_network_of_its_own_has_the_usual_ports() -> None:
    job = new_job(nodes=2)
    job = with_status(job, attempt=1, pods=fresh_pods(job, DEFAULTS, 20_000))
    assert ports_of(job) == (AGENT_PORT, BARRIER_PORT, RENDEZVOUS_PORT_BASE)
    pod = build_pod(job, 0, 1, DEFAULTS)
    assert not {"hostNetwork", "dnsPolicy"} & pod["spec"].keys()
    assert not {"DDP_AGENT_BIND", "DDP_BARRIER_PORT"} & variables(pod).keys()


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("20000-29999", 151),
        ("20000-20065", 1),
        ("1024-65535", 977),
        ("20000-20131", 2),
        ("20000-20132", 2),
    ],
)
def test_range_has_whole_blocks_only(text: str, blocks: int) -> None:
    ports = PortRange.parse(text)
    assert (len(ports.blocks), str(ports)) == (blocks, text)
    assert ports.blocks[-1] + PORTS_PER_JOB - 1 <= ports.last


@pytest.mark.parametrize(
    "text", ["", "20000", "20000-20064", "30000-20000", "80-1200", "60000-65536", "a-b", "1-2-3"]
)
def test_text_that_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be FIRST-LAST with at least 66 ports"):
        PortRange.parse(text)


@pytest.mark.parametrize(
    ("taken", "free"),
    [
        ((), 20_000),
        ((20_000,), 20_066),
        ((20_066,), 20_000),
        ((20_132, 20_000), 20_066),
        ((20_000, 20_066, 20_132), None),
        ((19_990,), 20_066),
        ((20_030,), 20_132),
        ((8_000, 40_000), 20_000),
    ],
)
def test_free_block_is_the_lowest_that_overlaps_no_other(
    taken: tuple[int, ...], free: int | None
) -> None:
    """Blocks of an earlier range may lie across those of the present one."""
    assert RANGE.free_block(taken) == free
