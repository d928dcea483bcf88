"""Whose fault the end of an attempt was, which budget it costs, and when a budget is spent."""

from typing import Any

import pytest

from ddp_operator.api.status import Cause, FailureStatus
from ddp_operator.reconcile.plan import Plan
from ddp_operator.reconcile.world import PodView
from ddp_wire.contract import AgentStatus, ExitCode
from tests.operator.support import (
    active_job,
    after,
    all_pods,
    ended,
    failed_word,
    plan_for,
    pod,
    reason,
    summary,
    word,
)

APPLICATION, INFRASTRUCTURE, FREE = Cause.APPLICATION, Cause.INFRASTRUCTURE, Cause.FREE


def failure(plan: Plan) -> FailureStatus:
    assert plan.status.last_failure is not None
    return plan.status.last_failure


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
    "ended by itself": ({"termination": ended(1)}, APPLICATION, "PodFailed"),
    "a signal of its own": ({"termination": ended(139)}, APPLICATION, "PodFailed"),
    "killed without a word": ({"termination": ended(137)}, INFRASTRUCTURE, "PodFailed"),
    "killed after its word": (
        {"termination": ended(137, final=failed_word(1))},
        APPLICATION,
        "RankFailed",
    ),
    "killed by an eviction": (
        {"termination": ended(143), "reason": "Evicted"},
        INFRASTRUCTURE,
        "Evicted",
    ),
    "out of memory on a node that evicts": (
        {"termination": ended(137, reason="OOMKilled"), "reason": "Evicted"},
        APPLICATION,
        "OOMKilled",
    ),
    "no container has ended": ({}, INFRASTRUCTURE, "PodFailed"),
    "evicted": ({"reason": "Evicted"}, INFRASTRUCTURE, "Evicted"),
    "its node was lost": ({"reason": "NodeLost"}, INFRASTRUCTURE, "NodeLost"),
    "its node was shut down": ({"reason": "NodeShutdown"}, INFRASTRUCTURE, "NodeShutdown"),
    "stopped on request": ({"termination": ended(ExitCode.PREEMPTED)}, FREE, "Preempted"),
}


@pytest.mark.parametrize(("fields", "cause", "why"), DEAD.values(), ids=DEAD.keys())
def test_the_cause_of_a_dead_pod(fields: dict[str, Any], cause: Cause, why: str) -> None:
    job = active_job()
    plan = plan_for(job, [pod(job, 0), pod(job, 1, phase="Failed", ready=False, **fields)])
    assert (failure(plan).cause, failure(plan).reason) == (cause, why)
    assert spent(plan) == tuple(int(cause is c) for c in (APPLICATION, INFRASTRUCTURE, FREE))


DISRUPTIONS = {
    "PreemptionByScheduler": (FREE, "digits-1 made room for a pod of higher priority"),
    "EvictionByEvictionAPI": (FREE, "digits-1 was evicted, as when its node is drained"),
    "DeletionByTaintManager": (INFRASTRUCTURE, "digits-1 was deleted for a taint of its node"),
    "DeletionByPodGC": (INFRASTRUCTURE, "digits-1 was deleted because its node is gone"),
    "TerminationByKubelet": (INFRASTRUCTURE, "digits-1 was ended by the kubelet of its node"),
    "OfMyOwn": (INFRASTRUCTURE, "digits-1 was told to go: OfMyOwn"),
}
GOING: dict[str, tuple[dict[str, Any], AgentStatus | None]] = {
    "is being deleted": ({"deleting": True}, None),
    "its ranks fell": ({}, failed_word(1)),
    "its ranks fell as ones whose peer had gone": ({}, failed_word(1, secondary=True)),
    "its ranks stopped": ({}, word(1, phase="Preempted")),
    "has ended": ({"phase": "Failed", "termination": ended(85)}, None),
    "was killed": ({"phase": "Failed", "termination": ended(137)}, None),
    "failed as a whole": ({"phase": "Failed"}, None),
}


@pytest.mark.parametrize(("fields", "said"), GOING.values(), ids=GOING.keys())
@pytest.mark.parametrize("told", DISRUPTIONS)
def test_a_pod_that_was_told_to_go_is_judged_by_that(
    told: str, fields: dict[str, Any], said: AgentStatus | None
) -> None:
    job = active_job(maxRestarts=0)
    going = pod(job, 1, disruption=told, **fields)
    plan = plan_for(job, [pod(job, 0), going], words={1: said} if said else None)
    cause, message = DISRUPTIONS[told]
    found = failure(plan)
    assert (found.cause, found.reason, found.message) == (cause, told, message)
    assert (found.pod, found.node, plan.status.attempt) == ("digits-1", "machine-1", 2)


def test_a_pod_that_was_told_to_go_but_trains_still_is_no_loss() -> None:
    job = active_job()
    seen = [pod(job, 0), pod(job, 1, disruption="EvictionByEvictionAPI")]
    assert plan_for(job, seen).status.attempt == 1


def test_bad_input_is_bad_input_in_a_pod_that_was_told_to_go() -> None:
    job = active_job()
    seen = [pod(job, 0, disruption="EvictionByEvictionAPI"), pod(job, 1)]
    plan = plan_for(job, seen, words={0: failed_word(0, exit_code=ExitCode.BAD_INPUT)})
    assert reason(plan.status) == "Failed"


@pytest.mark.parametrize("told", [0, 1], ids=["node 0's pod", "another pod"])
def test_ranks_that_stop_because_another_pod_was_told_to_go_are_not_the_cause(told: int) -> None:
    job = active_job()
    seen: list[PodView] = [pod(job, 0), pod(job, 1)]
    seen[told] = pod(job, told, deleting=True, disruption="DeletionByTaintManager")
    plan = plan_for(job, seen, words={1 - told: word(1 - told, phase="Preempted")})
    assert failure(plan).pod == f"digits-{told}"
    assert spent(plan) == (0, 1, 0)


# --- Budgets ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("most", "count", "ends"),
    [(0, 0, True), (1, 0, False), (50, 49, False), (50, 50, True), (2, 9, True)],
    ids=["none allowed", "1 of 1", "50 of 50", "51 of 50", "lowered below what is spent"],
)
def test_lost_pods_have_a_budget_of_their_own(most: int, count: int, ends: bool) -> None:
    status = {"infrastructure_restarts": count}
    job = active_job(
        attempt=count + 1, status=status, maxRestarts=0, maxInfrastructureRestarts=most
    )
    plan = plan_for(job, [pod(job, 0)])
    if not ends:
        assert (plan.status.attempt, spent(plan)) == (count + 2, (0, count + 1, 0))
        return
    said = f"digits-1 was deleted (attempt {count + 1}, maxInfrastructureRestarts {most})"
    assert summary(plan.status) == ("False", "Failed", said)
    assert spent(plan) == (0, count, 0)


def test_fallen_ranks_cost_nothing_of_the_budget_for_lost_pods() -> None:
    job = active_job(maxInfrastructureRestarts=0)
    plan = plan_for(job, all_pods(job), words={0: failed_word(0)})
    assert (plan.status.attempt, spent(plan)) == (2, (1, 0, 0))


# --- The window ---------------------------------------------------------------------------------

WINDOW: dict[str, tuple[list[int], bool]] = {
    "none before": ([], False),
    "one within": ([-30], False),
    "two within": ([-59, -1], True),
    "one within, one on its edge": ([-60, -1], False),
    "many before it, one within": ([-500, -400, -300, -1], False),
    "a clock that was ahead": ([5, 6], True),
}


@pytest.mark.parametrize(("ages", "ends"), WINDOW.values(), ids=WINDOW.keys())
def test_only_failures_within_the_window_count(ages: list[int], ends: bool) -> None:
    times = [after(age) for age in ages]
    status = {"restarts": 9, "recent_failures": times}
    job = active_job(attempt=10, status=status, maxRestarts=2, restartWindowSeconds=60)
    plan = plan_for(
        job, all_pods(job), words={0: failed_word(0, attempt=10, message="E: x")}, now=after(0.7)
    )
    if ends:
        assert summary(plan.status)[2].endswith("E: x (attempt 10, maxRestarts 2 within 60 s)")
        assert plan.status.recent_failures == times
        return
    assert (plan.status.attempt, plan.status.restarts) == (11, 10)
    assert plan.status.recent_failures == [*times, after(0)]


def test_the_status_remembers_the_times_of_32_failures() -> None:
    times = [after(i) for i in range(32)]
    job = active_job(status={"recent_failures": times}, maxRestarts=99)
    plan = plan_for(job, all_pods(job), words={0: failed_word(0)}, now=after(40))
    assert plan.status.recent_failures == [*times[1:], after(40)]


def test_lost_pods_leave_the_times_of_failures_alone() -> None:
    job = active_job(restartWindowSeconds=60)
    assert plan_for(job, [pod(job, 0)]).status.recent_failures == []
