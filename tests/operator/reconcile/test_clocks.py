"""Decisions do not depend on the clocks of the machines, which may differ by any constant."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import ConditionType, QueueStatus
from ddp_operator.builders.service import build_service
from ddp_operator.cluster.base import Manifest
from ddp_operator.reconcile.decide import decide
from ddp_operator.reconcile.plan import Plan
from ddp_operator.reconcile.pod_view import PodView
from ddp_operator.reconcile.world import World
from ddp_operator.runtime.cache import Cache
from ddp_operator.runtime.controller import Controller
from ddp_wire import contract
from ddp_wire.messages import AgentStatus, Failure, Timeline
from tests.operator.direct_statuses import DirectStatuses
from tests.operator.fake_cluster import FakeCluster
from tests.operator.support import (
    DEFAULTS,
    NOW,
    active_job,
    after,
    agent_status,
    job_manifest,
    pod_manifest,
    view_of,
    with_status,
)

STEPS = (-3600, -60, -10, -3, 3, 10, 60, 3600)
KEY = ("team-a", "digits")


class Clocks:
    """Clocks of all machines. One of them is wrong by some seconds."""

    def __init__(self, wrong: str, step: float) -> None:
        self._steps = {wrong: step}

    def at(self, machine: str, seconds: float) -> Any:
        """Return the time that a machine's clock shows some seconds after the attempt began."""
        return after(seconds + self._steps.get(machine, 0.0))

    def worker(self, job: DDPJob, index: int, *, first: int = 1, **status: Any) -> Manifest:
        """Return a pod of the job's attempt, created for the attempt `first`."""
        manifest = pod_manifest(job, index, **status)
        manifest["metadata"]["annotations"][contract.ANNOTATION_FIRST_ATTEMPT] = str(first)
        return manifest

    def killed(self, job: DDPJob, index: int, seconds: float, **more: Any) -> Manifest:
        at = self.at(f"node {index}", seconds).isoformat()
        end = {"exitCode": 137, "reason": "Error", "finishedAt": at}
        status = [{"name": "worker", "state": {"terminated": end}}]
        return self.worker(job, index, phase="Failed", containerStatuses=status, **more)

    def deleted(self, manifest: Manifest, seconds: float, reason: str) -> Manifest:
        """Return a pod that is being deleted, with 60 s of grace."""
        deadline = self.at("API server", seconds + 60).isoformat()
        times = {"deletionTimestamp": deadline, "deletionGracePeriodSeconds": 60}
        disruption = {"type": "DisruptionTarget", "status": "True", "reason": reason}
        manifest["status"]["conditions"] = [disruption]
        return {**manifest, "metadata": {**manifest["metadata"], **times}}

    def failed(self, index: int, seconds: float, **failure: Any) -> AgentStatus:
        """Return the report of a failure. All agents started torchrun 2 s into the attempt."""
        at = self.at(f"node {index}", seconds).timestamp()
        launched = self.at(f"node {index}", 2).timestamp()
        return agent_status(
            index,
            phase="Failed",
            timeline=Timeline(ordered=launched - 1, launched=launched),
            failure=Failure(attempt=1, at=at, rank=index, exit_code=1, **failure),
        )

    def look(
        self,
        job: DDPJob,
        pods: list[Manifest],
        seconds: float,
        statuses: dict[int, AgentStatus] | None = None,
        *,
        deleting: float = 0.0,
        silent: tuple[int, ...] = (),
    ) -> Plan:
        """Return the decision some seconds after the attempt began."""
        started = self.at("operator", 0)
        job = with_status(job, attempt_start_time=started, start_time=started)
        views: list[PodView] = [view_of(manifest) for manifest in pods]
        seen = World(
            job,
            self.at("operator", seconds),
            tuple(views),
            children={"Service": [build_service(job)]},
            agent_statuses={
                v.uid: statuses[v.index] for v in views if statuses and v.index in statuses
            },
            silent=frozenset(v.uid for v in views if v.index in silent),
            undecided_for=timedelta(seconds=3),
            deleting_for={v.uid: timedelta(seconds=deleting) for v in views if v.deleting},
        )
        return decide(seen, DEFAULTS)


def crash_at_the_start(clocks: Clocks) -> Plan:
    job = active_job(formed=False)
    return clocks.look(job, [clocks.worker(job, 0), clocks.killed(job, 1, 1)], 3)


def crash_of_a_replaced_pod(clocks: Clocks) -> Plan:
    job = active_job(attempt=4, formed=False)
    return clocks.look(job, [clocks.worker(job, 0), clocks.killed(job, 1, 1, first=4)], 3)


def end_before_the_attempt(clocks: Clocks) -> Plan:
    """Return a pod whose kubelet was offline and reports the end of the previous attempt."""
    job = active_job(attempt=4, formed=False)
    return clocks.look(job, [clocks.worker(job, 0), clocks.killed(job, 1, -5)], 3)


def kill_while_training(clocks: Clocks) -> Plan:
    job = active_job(attempt=4)
    statuses = {0: agent_status(0, attempt=4)}
    return clocks.look(job, [clocks.worker(job, 0), clocks.killed(job, 1, 5)], 6, statuses)


def drain(clocks: Clocks) -> Plan:
    job = active_job(attempt=2, formed=False)
    leaving = clocks.deleted(clocks.worker(job, 1), 5, "EvictionByEvictionAPI")
    return clocks.look(job, [clocks.worker(job, 0), leaving], 6, deleting=1)


def lost_node(clocks: Clocks) -> Plan:
    job = active_job(attempt=2, formed=False)
    leaving = clocks.deleted(clocks.worker(job, 1), 5, "DeletionByTaintManager")
    leaving["metadata"]["annotations"][contract.ANNOTATION_ATTEMPT] = "1"
    pods = [clocks.worker(job, 0), leaving]
    statuses = {0: agent_status(0, attempt=2, phase="Waiting")}
    return clocks.look(job, pods, 7, statuses, deleting=2, silent=(1,))


def first_of_two_failures(clocks: Clocks) -> Plan:
    job = active_job()
    statuses = {
        0: clocks.failed(0, 20.5, message="later"),
        1: clocks.failed(1, 20, message="cause"),
    }
    return clocks.look(job, [clocks.worker(job, i) for i in (0, 1)], 21, statuses)


def silent_peer(clocks: Clocks) -> Plan:
    job = active_job()
    statuses = {0: clocks.failed(0, 20, secondary=True)}
    return clocks.look(job, [clocks.worker(job, i) for i in (0, 1)], 21, statuses, silent=(1,))


def readiness_without_reports(clocks: Clocks) -> Plan:
    job = active_job(attempt=2, formed=False)
    since = clocks.at("node 0", -30).isoformat()
    ready = [{"type": "Ready", "status": "True", "lastTransitionTime": since}]
    return clocks.look(job, [clocks.worker(job, i, conditions=ready) for i in (0, 1)], 5)


def delayed_attempt(clocks: Clocks) -> Plan:
    job = active_job(attempt=5, formed=False, status={"attempts_without_progress": 4})
    return clocks.look(job, [clocks.killed(job, 1, -5)], -2)


def held_by_a_gate(clocks: Clocks) -> Plan:
    held = QueueStatus(since=clocks.at("operator", 5), attempt_seconds=20, job_seconds=20)
    deadlines = {"startupDeadlineSeconds": 60, "activeDeadlineSeconds": 60}
    job = active_job(formed=False, status={"queue": held}, **deadlines)
    gate = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
    gate["lastTransitionTime"] = clocks.at("API server", 5).isoformat()
    pods = [clocks.worker(job, i, phase="Pending", conditions=[gate]) for i in (0, 1)]
    return clocks.look(job, pods, 5000)


SCENES: tuple[tuple[Callable[[Clocks], Plan], str], ...] = (
    (crash_at_the_start, "attempt 2 Recovering PodFailed of digits-1"),
    (crash_of_a_replaced_pod, "attempt 5 Recovering PodFailed of digits-1"),
    (end_before_the_attempt, "attempt 4 Starting DeletePod CreatePod"),
    (kill_while_training, "attempt 5 Recovering PodFailed of digits-1"),
    (drain, "attempt 2 Starting"),
    (lost_node, "attempt 2 Starting DeletePod CreatePod"),
    (first_of_two_failures, "attempt 2 Recovering RankFailed of digits-1"),
    (silent_peer, "attempt 2 Recovering PeerLost of digits-1"),
    (readiness_without_reports, "attempt 2 Starting"),
    (delayed_attempt, "attempt 5 Starting"),
    (held_by_a_gate, "attempt 1 Pending"),
)


def outcome(plan: Plan) -> str:
    """Return the decision in words, without times."""
    condition = plan.status.condition(ConditionType.SUCCEEDED)
    assert condition is not None
    failure = plan.status.last_failure
    text = f"attempt {plan.status.attempt} {condition.reason}"
    if failure is not None:
        return f"{text} {failure.reason} of {failure.pod}"
    return " ".join([text, *(type(action).__name__ for action in plan.actions)])


@pytest.mark.parametrize(("scene", "expected"), SCENES, ids=[s.__name__ for s, _ in SCENES])
def test_constant_clock_offset_changes_no_decision(
    scene: Callable[[Clocks], Plan], expected: str
) -> None:
    assert outcome(scene(Clocks("none", 0))) == expected
    for machine in ("operator", "API server", "node 0", "node 1"):
        for step in STEPS:
            assert outcome(scene(Clocks(machine, step))) == expected, f"{machine} {step:+} s"


class CrashLoop:
    """Job whose pods crash 1 s after their start, and the controller that replaces them."""

    def __init__(self, kubelet_offset: float) -> None:
        self.cluster, cache, self.now = FakeCluster(), Cache(), NOW
        self.cluster.watching = cache
        cache.put_job(self.cluster.apply(job_manifest(nodes=2)))
        self._offset = timedelta(seconds=1 + kubelet_offset)
        agents = DirectStatuses(self.cluster)
        self.controller = Controller(self.cluster, cache, DEFAULTS, lambda: self.now, agents=agents)

    async def run(self, seconds: int, *, remove: bool = False) -> tuple[int, Manifest]:
        """Return the number of created pods, and the last status."""
        for _ in range(seconds):
            for _ in range(4):
                await self.controller.reconcile(KEY)
            for found in self.cluster.pods():
                if found["status"]["phase"] != "Pending":
                    continue
                at = (self.now + self._offset).isoformat()
                end = {"exitCode": 1, "reason": "Error", "finishedAt": at, "message": "no module"}
                states = [{"name": "worker", "state": {"terminated": end}}]
                name = found["metadata"]["name"]
                if remove:
                    self.cluster.remove_pod(name)
                else:
                    self.cluster.change_pod(name, phase="Failed", containerStatuses=states)
            self.now += timedelta(seconds=1)
        created = sum(write.startswith("create Pod") for write in self.cluster.writes)
        return created, self.cluster.statuses[-1]


@pytest.mark.parametrize("offset", [0, *STEPS])
async def test_crash_loop_is_charged_and_delayed_whatever_the_nodes_clock_shows(
    offset: float,
) -> None:
    created, status = await CrashLoop(offset).run(12)
    assert (created, status["attempt"], status["restarts"]) == (8, 4, 3)
    assert [c["status"] for c in status["conditions"] if c["type"] == "Succeeded"] == ["False"]


async def test_pods_that_vanish_before_the_start_are_created_with_growing_delays() -> None:
    """Before the start a missing pod ends no attempt, so no budget limits the creations."""
    created, status = await CrashLoop(0).run(40, remove=True)
    assert status["attempt"] == 1
    assert created == 2 * len([0, 1, 2, 4, 8, 16, 32])


def test_clock_differences_smaller_than_the_agents_start_times_are_ignored() -> None:
    """Clocks that differ by less than the starts of the agents count as equal."""
    clocks = Clocks("none", 0)
    job = active_job(nodes=3)
    statuses = {i: clocks.failed(i, 20 + 0.01 * i, message="x") for i in range(3)}
    late = statuses[0].timeline
    assert late is not None
    late = late.model_copy(update={"launched": (late.launched or 0) + 0.5})
    statuses[0] = statuses[0].model_copy(update={"timeline": late})
    plan = clocks.look(job, [clocks.worker(job, i) for i in range(3)], 21, statuses)
    assert outcome(plan) == "attempt 2 Recovering RankFailed of digits-0"


def test_attempt_that_waits_starts_at_once_after_the_clock_was_set_back() -> None:
    job = active_job(attempt=5, formed=False, status={"attempts_without_progress": 4})
    early = replace(World(job, after(-3600)), children={"Service": [build_service(job)]})
    assert [type(a).__name__ for a in decide(early, DEFAULTS).actions] == ["CreatePod"] * 2
