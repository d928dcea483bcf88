"""Each job with `network.hostNetwork` has a block of ports of its own until its pods have ended."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from ddp_operator.api.job import DDPJob, parse_job
from ddp_operator.builders.host_ports import PORTS_PER_JOB, PortRange
from ddp_operator.cluster.base import Manifest
from ddp_operator.runtime.cache import Cache
from ddp_operator.runtime.controller import Controller
from ddp_operator.runtime.host_ports import HostPorts
from tests.operator.direct_statuses import DirectStatuses
from tests.operator.fake_cluster import FakeCluster
from tests.operator.support import DEFAULTS, NOW, agent_status, failed_status, job_manifest

TWO_BLOCKS = PortRange(20_000, 20_000 + 2 * PORTS_PER_JOB - 1)
FIRST, SECOND = TWO_BLOCKS.blocks


def host_job(name: str, **spec: Any) -> Manifest:
    job = job_manifest(name, **({"nodes": 2, "network": {"hostNetwork": True}} | spec))
    job["metadata"] |= {"uid": f"uid-{name}"}
    return job


class SlowCluster(FakeCluster):
    """Cluster in which other workers decide while a status is being written."""

    async def write_status(self, job: Manifest, status: Manifest) -> Manifest:
        await asyncio.sleep(0.001)
        return await super().write_status(job, status)


class Fleet:
    """Cluster with several jobs and one controller."""

    def __init__(self, *names: str, ports: PortRange | None = TWO_BLOCKS) -> None:
        self.cluster = SlowCluster()
        for name in names:
            self.cluster.apply(host_job(name))
        self.restart(ports)

    def restart(self, ports: PortRange | None = TWO_BLOCKS) -> None:
        """Start a new operator, which lists all jobs before it decides."""
        self.cache = Cache()
        self.cluster.watching = self.cache
        self.cache.replace(self.cluster.snapshot())
        self.agents = DirectStatuses(self.cluster)
        defaults = replace(DEFAULTS, host_ports=ports)
        self.controller = Controller(
            self.cluster, self.cache, defaults, lambda: NOW, agents=self.agents
        )

    async def look(self, *names: str) -> None:
        """Reconcile all jobs at the same time, several times."""
        for _ in range(3):
            await asyncio.gather(*(self.controller.reconcile(("team-a", name)) for name in names))

    def job(self, name: str) -> DDPJob:
        return parse_job(self.cluster.jobs["team-a", name])

    def block(self, name: str) -> int | None:
        pods = self.job(name).status.pods
        return pods.first_port if pods is not None else None

    def ports_of_pods(self, name: str) -> set[int]:
        pods = [p for p in self.cluster.pods() if p["metadata"]["name"].startswith(f"{name}-")]
        return {p["spec"]["containers"][0]["ports"][0]["containerPort"] for p in pods}

    def message(self, name: str) -> tuple[str, str]:
        [summary] = [c for c in self.job(name).status.conditions if c.type == "Succeeded"]
        return summary.reason, summary.message

    def edit(self, name: str, **spec: Any) -> None:
        self.cluster.apply(host_job(name, **spec))

    def finish_pods(self, name: str) -> None:
        """Let all ranks of a job exit with code 0."""
        ended = {"name": "worker", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}
        for index in range(2):
            self.cluster.change_pod(
                f"{name}-{index}", phase="Succeeded", podIP="10.0.0.1", containerStatuses=[ended]
            )


async def test_jobs_that_start_together_get_different_blocks() -> None:
    fleet = Fleet("a", "b")
    await fleet.look("a", "b")
    assert {fleet.block("a"), fleet.block("b")} == {FIRST, SECOND}
    assert fleet.ports_of_pods("a") | fleet.ports_of_pods("b") == {FIRST, SECOND}


async def test_status_has_the_block_before_any_pod_exists() -> None:
    fleet = Fleet("a")
    await fleet.look("a")
    first, *rest = fleet.cluster.writes
    assert first == "status a"
    assert any(write.startswith("create Pod") for write in rest)


async def test_restarted_operator_keeps_the_blocks_of_the_statuses() -> None:
    fleet = Fleet("a", "b")
    await fleet.look("b")
    fleet.restart()
    await fleet.look("a", "b")
    assert (fleet.block("b"), fleet.block("a")) == (FIRST, SECOND)


async def test_job_waits_for_a_block_and_gets_that_of_an_ended_job() -> None:
    fleet = Fleet("a", "b", "c")
    await fleet.look("a", "b")
    await fleet.look("c")
    assert fleet.ports_of_pods("c") == set()
    reason, message = fleet.message("c")
    assert reason == "Pending"
    assert message == (
        "all blocks of 66 ports in 20000-20131 are in use by other jobs with network.hostNetwork:"
        " this job starts when one of them has ended; reserve more ports with workers.hostPorts of"
        " the chart, or remove network.hostNetwork from this job"
    )
    events = [event.reason for event in fleet.cluster.events]
    assert events.count("HostPortsExhausted") == 1, "the wait begins once"
    fleet.finish_pods("a")
    await fleet.look("a", "c")
    assert fleet.block("a") is None
    await fleet.look("c")
    assert fleet.ports_of_pods("c") == {FIRST}


async def test_suspended_job_releases_its_block_when_its_pods_are_gone() -> None:
    fleet = Fleet("a", "b")
    await fleet.look("a")
    fleet.edit("a", suspend=True)
    await fleet.look("a")
    assert fleet.cluster.pods() != [] or fleet.block("a") is None
    for pod in fleet.cluster.pods():
        fleet.cluster.remove_pod(pod["metadata"]["name"])
    await fleet.look("a")
    assert fleet.block("a") is None
    await fleet.look("b")
    assert fleet.block("b") == FIRST


async def test_edited_job_keeps_its_block_and_loses_it_with_the_host_network() -> None:
    fleet = Fleet("a", "b")
    await fleet.look("a", "b")
    before = fleet.block("a")
    fleet.edit("a", config={"epochs": 3})
    await fleet.look("a")
    assert (fleet.job("a").status.attempt, fleet.block("a")) == (2, before)
    fleet.edit("a", network={"interface": "eth0"})
    await fleet.look("a")
    assert fleet.block("a") is None


async def test_job_is_refused_if_the_installation_reserves_no_ports() -> None:
    fleet = Fleet("a", ports=None)
    await fleet.look("a")
    reason, message = fleet.message("a")
    assert reason == "Invalid"
    assert message == (
        "spec.network.hostNetwork: must not be set, because workers.hostPorts of this installation"
        " reserves no ports"
    )
    assert fleet.cluster.pods() == []


async def test_running_job_keeps_its_ports_when_the_installation_reserves_others() -> None:
    fleet = Fleet("a", "b")
    await fleet.look("a")
    fleet.restart(PortRange(30_000, 30_000 + PORTS_PER_JOB - 1))
    await fleet.look("a", "b")
    assert (fleet.block("a"), fleet.block("b")) == (FIRST, 30_000)


async def test_operator_reaches_the_agents_at_the_port_of_the_block() -> None:
    """Both requests for statuses and orders go there."""
    fleet = Fleet("a")
    await fleet.look("a")
    for index in range(2):
        pod = fleet.cluster.change_pod(f"a-{index}", phase="Running", podIP="10.0.0.1")
        fleet.cluster.agents[pod["metadata"]["uid"]] = agent_status(index, phase="Waiting")
    await fleet.look("a")
    assert fleet.agents.ports == {FIRST}
    pod = fleet.cluster.pod("a-1")
    fleet.cluster.agents[pod["metadata"]["uid"]] = failed_status(1)
    await fleet.look("a")
    assert fleet.cluster.orders
    assert {port for _, port, _ in fleet.cluster.orders} == {FIRST}


@pytest.mark.parametrize("ends", ["deleted", "suspended", "finished", "edited"])
def test_block_that_no_status_recorded_is_released_with_its_job(ends: str) -> None:
    ports, index = TWO_BLOCKS, HostPorts()
    a, b = ("team-a", "a"), ("team-b", "a")
    index.put(a, host_job("a"))
    assert (index.block(a, ports), index.block(b, ports)) == (FIRST, SECOND)
    assert index.block(("team-a", "c"), ports) is None
    ended = {
        "suspended": host_job("a", suspend=True),
        "finished": {**host_job("a"), "status": {"completionTime": "2026-03-01T12:00:00Z"}},
        "edited": host_job("a", network={"interface": "eth0"}),
    }
    if ends == "deleted":
        index.drop(a)
    else:
        index.put(a, ended[ends])
    assert index.block(("team-a", "c"), ports) == FIRST
