"""The cause of a fault, the budget that it is charged to, and the limit of each budget."""

from typing import Any

import pytest

from ddp_operator.api.status import Cause
from ddp_operator.reconcile.plan import Plan
from ddp_operator.reconcile.pod_view import PodView
from ddp_wire.contract import ExitCode
from ddp_wire.messages import AgentStatus
from tests.operator.support import (
    active_job,
    after,
    agent_status,
    all_pods,
    ended,
    failed_status,
    failure,
    plan_for,
    pod,
    reason,
    summary,
)

APPLICATION, INFRASTRUCTURE, FREE = Cause.APPLICATION, Cause.INFRASTRUCTURE, Cause.FREE


def spent(plan: Plan) -> tuple[int, int, int]:
    status = plan.status
    return status.restarts, status.infrastructure_restarts, status.free_restarts


# --- Causes -----------------------------------------------------------------------------------

DEAD: dict[str, tuple[dict[str, Any], Cause, str]] = {
    "out of memory": (
        {"termination": ended(137, reason="OOMKilled")},
        APPLICATION,
        "OOMKilled",
    ),
    "the container exited with code 1": ({"termination": ended(1)}, APPLICATION, "PodFailed"),
    "the container crashed": ({"termination": ended(139)}, APPLICATION, "PodFailed"),
    "killed without a report": ({"termination": ended(137)}, INFRASTRUCTURE, "PodFailed"),
    "killed after its report": (
        {"termination": ended(137, final=failed_status(1))},
        APPLICATION,
        "RankFailed",
    ),
    "killed by an eviction": (
        {"termination": ended(143), "reason": "Evicted"},
        INFRASTRUCTURE,
        "Evicted",
    ),
    "out of memory and evicted": (
        {"termination": ended(137, reason="OOMKilled"), "reason": "Evicted"},
        APPLICATION,
        "OOMKilled",
    ),
    "no container ended": ({}, INFRASTRUCTURE, "PodFailed"),
    "evicted": ({"reason": "Evicted"}, INFRASTRUCTURE, "Evicted"),
    "Kubernetes node lost": ({"reason": "NodeLost"}, INFRASTRUCTURE, "NodeLost"),
    "Kubernetes node shut down": ({"reason": "NodeShutdown"}, INFRASTRUCTURE, "NodeShutdown"),
    "stopped on request": ({"termination": ended(ExitCode.PREEMPTED)}, FREE, "Preempted"),
}


@pytest.mark.parametrize(("fields", "cause", "why"), DEAD.values(), ids=DEAD.keys())
def test_dead_pod_has_the_expected_cause(fields: dict[str, Any], cause: Cause, why: str) -> None:
    job = active_job()
    plan = plan_for(job, [pod(job, 0), pod(job, 1, phase="Failed", ready=False, **fields)])
    assert (failure(plan).cause, failure(plan).reason) == (cause, why)
    assert spent(plan) == tuple(int(cause is c) for c in (APPLICATION, INFRASTRUCTURE, FREE))


DISRUPTIONS = {
    "PreemptionByScheduler": (FREE, "digits-1 was preempted by a pod of higher priority"),
    "EvictionByEvictionAPI": (FREE, "digits-1 was evicted, for example by a node drain"),
    "DeletionByTaintManager": (
        INFRASTRUCTURE,
        "digits-1 was deleted because of a taint on its Kubernetes node",
    ),
    "DeletionByPodGC": (
        INFRASTRUCTURE,
        "digits-1 was deleted because its Kubernetes node no longer exists",
    ),
    "TerminationByKubelet": (
        INFRASTRUCTURE,
        "digits-1 was terminated by the kubelet of its Kubernetes node",
    ),
    "CustomDisruption": (INFRASTRUCTURE, "digits-1 was disrupted: CustomDisruption"),
}
DISRUPTED: dict[str, tuple[dict[str, Any], AgentStatus | None]] = {
    "is being deleted": ({"deleting": True}, None),
    "its ranks failed": ({}, failed_status(1)),
    "its ranks lost a peer": ({}, failed_status(1, secondary=True)),
    "its ranks stopped": ({}, agent_status(1, phase="Preempted")),
    "has ended": ({"phase": "Failed", "termination": ended(85)}, None),
    "was killed": ({"phase": "Failed", "termination": ended(137)}, None),
    "failed as a whole": ({"phase": "Failed"}, None),
}


@pytest.mark.parametrize(("fields", "report"), DISRUPTED.values(), ids=DISRUPTED.keys())
@pytest.mark.parametrize("disruption", DISRUPTIONS)
def test_disruption_of_a_pod_decides_the_cause(
    disruption: str, fields: dict[str, Any], report: AgentStatus | None
) -> None:
    job = active_job(maxRestarts=0)
    disrupted = pod(job, 1, disruption=disruption, ready=False, **fields)
    plan = plan_for(job, [pod(job, 0), disrupted], statuses={1: report} if report else None)
    cause, message = DISRUPTIONS[disruption]
    if disruption == "DeletionByTaintManager" and (report or disrupted.termination):
        cause = Cause.FREE  # The Kubernetes node works.
    found = failure(plan)
    assert (found.cause, found.reason, found.message) == (cause, disruption, message)
    assert (found.pod, found.node, plan.status.attempt) == ("digits-1", "machine-1", 2)


@pytest.mark.parametrize(
    ("fields", "report", "silent", "free"),
    [
        ({"ready": True}, None, True, True),
        ({"ready": False}, agent_status(1, phase="Preempted"), False, True),
        ({"ready": False}, agent_status(1, phase="Training"), False, False),
        ({"ready": False}, None, True, False),
        ({"ready": False}, None, False, False),
        ({"phase": "Failed", "termination": ended(85)}, None, True, True),
    ],
    ids=["ready", "ranks stopped", "request still waits", "lost", "not ready", "ended"],
)
def test_eviction_by_a_taint_on_a_healthy_node_uses_no_budget(
    fields: dict[str, Any], report: AgentStatus | None, silent: bool, free: bool
) -> None:
    """Pods of an unreachable node are also evicted by a taint, but as an infrastructure fault."""
    job = active_job()
    leaving = pod(job, 1, deleting=True, disruption="DeletionByTaintManager", **fields)
    statuses = {0: agent_status(0)} | ({1: report} if report else {})
    plan = plan_for(job, [pod(job, 0), leaving], statuses=statuses, silent=[1] if silent else [])
    assert failure(plan).cause is (Cause.FREE if free else INFRASTRUCTURE)
    assert plan.status.free_restarts == int(free)


def test_disrupted_pod_that_still_trains_is_no_fault() -> None:
    job = active_job()
    seen = [pod(job, 0), pod(job, 1, disruption="EvictionByEvictionAPI")]
    assert plan_for(job, seen).status.attempt == 1


def test_bad_input_in_a_disrupted_pod_is_not_retried() -> None:
    job = active_job()
    seen = [pod(job, 0, disruption="EvictionByEvictionAPI"), pod(job, 1)]
    plan = plan_for(job, seen, statuses={0: failed_status(0, exit_code=ExitCode.BAD_INPUT)})
    assert reason(plan.status) == "Failed"


@pytest.mark.parametrize("deleted", [0, 1], ids=["node 0's pod", "another pod"])
def test_ranks_that_stop_because_another_pod_is_deleted_are_not_the_root_cause(
    deleted: int,
) -> None:
    job = active_job()
    seen: list[PodView] = [pod(job, 0), pod(job, 1)]
    leaving = {"deleting": True, "ready": False, "disruption": "DeletionByTaintManager"}
    seen[deleted] = pod(job, deleted, **leaving)
    plan = plan_for(job, seen, statuses={1 - deleted: agent_status(1 - deleted, phase="Preempted")})
    assert failure(plan).pod == f"digits-{deleted}"
    assert spent(plan) == (0, 1, 0)


# --- Budgets ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("most", "count", "ends"),
    [(0, 0, True), (1, 0, False), (50, 49, False), (50, 50, True), (2, 9, True)],
    ids=["none allowed", "1 of 1", "50 of 50", "51 of 50", "limit lowered below the count"],
)
def test_lost_pods_have_a_separate_budget(most: int, count: int, ends: bool) -> None:
    status = {"infrastructure_restarts": count}
    job = active_job(
        attempt=count + 1, status=status, maxRestarts=0, maxInfrastructureRestarts=most
    )
    plan = plan_for(job, [pod(job, 0)])
    if not ends:
        assert (plan.status.attempt, spent(plan)) == (count + 2, (0, count + 1, 0))
        return
    why = f"attempt {count + 1} is not retried: maxInfrastructureRestarts is {most}"
    assert summary(plan.status) == ("False", "Failed", f"digits-1 was deleted ({why})")
    assert spent(plan) == (0, count, 0)


def test_failed_ranks_do_not_use_the_budget_for_lost_pods() -> None:
    job = active_job(maxInfrastructureRestarts=0)
    plan = plan_for(job, all_pods(job), statuses={0: failed_status(0)})
    assert (plan.status.attempt, spent(plan)) == (2, (1, 0, 0))


# --- The window ---------------------------------------------------------------------------------

WINDOW: dict[str, tuple[list[int], bool]] = {
    "no earlier failure": ([], False),
    "one within the window": ([-30], False),
    "two within the window": ([-59, -1], True),
    "one within, one at the edge": ([-60, -1], False),
    "many before, one within": ([-500, -400, -300, -1], False),
    "times in the future": ([5, 6], True),
}


@pytest.mark.parametrize(("ages", "ends"), WINDOW.values(), ids=WINDOW.keys())
def test_only_failures_within_the_window_count(ages: list[int], ends: bool) -> None:
    times = [after(age) for age in ages]
    status = {"restarts": 9, "recent_failures": times}
    job = active_job(attempt=10, status=status, maxRestarts=2, restartWindowSeconds=60)
    plan = plan_for(
        job,
        all_pods(job),
        statuses={0: failed_status(0, attempt=10, message="E: x")},
        now=after(0.7),
    )
    if ends:
        assert summary(plan.status)[2].endswith(
            "E: x (attempt 10 is not retried: maxRestarts is 2 per 60 s)"
        )
        assert plan.status.recent_failures == times
        return
    assert (plan.status.attempt, plan.status.restarts) == (11, 10)
    assert plan.status.recent_failures == [*times, after(0)]


def test_status_keeps_the_times_of_32_failures() -> None:
    times = [after(i) for i in range(32)]
    job = active_job(status={"recent_failures": times}, maxRestarts=99)
    plan = plan_for(job, all_pods(job), statuses={0: failed_status(0)}, now=after(40))
    assert plan.status.recent_failures == [*times[1:], after(40)]


def test_lost_pods_do_not_change_the_recorded_times_of_failures() -> None:
    job = active_job(restartWindowSeconds=60)
    assert plan_for(job, [pod(job, 0)]).status.recent_failures == []
