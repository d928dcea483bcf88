"""The faults that end an attempt, their root cause, their budget and the actions that follow."""

from typing import Any

import pytest

from ddp_operator.api.status import Cause, ConditionType
from ddp_operator.reconcile.plan import CreatePod, DeletePod, Plan, SetAttempt
from ddp_operator.reconcile.pod_view import PodView
from ddp_wire import contract
from ddp_wire.contract import ExitCode
from ddp_wire.messages import Timeline
from tests.operator.support import (
    active_job,
    after,
    agent_status,
    all_pods,
    ended,
    failed_status,
    failure,
    last_failure,
    only,
    plan_for,
    pod,
    reason,
    summary,
)


def restarted_in_place(plan: Plan) -> dict[str, str]:
    """Return the new attempt by name of the living pods that restart in place."""
    return {a.name: a.value for a in only(plan.actions, SetAttempt)}


def recreated(plan: Plan) -> list[str]:
    deleted = [a.name for a in only(plan.actions, DeletePod)]
    created = [a.manifest["metadata"]["name"] for a in only(plan.actions, CreatePod)]
    assert set(deleted) <= set(created)
    return created


def test_failed_rank_restarts_all_pods_in_place() -> None:
    job = active_job(nodes=3)
    failed = failed_status(
        1, rank=1, message="ValueError: no", traceback="Traceback\nValueError: no"
    )
    plan = plan_for(
        job, all_pods(job), statuses={0: agent_status(0), 1: failed, 2: agent_status(2)}
    )
    assert (plan.status.attempt, plan.status.restarts) == (2, 1)
    assert restarted_in_place(plan) == {"digits-0": "2", "digits-1": "2", "digits-2": "2"}
    assert len(plan.actions) == 3
    assert plan.status.attempt_start_time == after(0)


def test_status_describes_the_failed_rank() -> None:
    job = active_job()
    failed = failed_status(1, rank=3, exit_code=7, message="ValueError: no", traceback="T\nE: no")
    found = failure(plan_for(job, all_pods(job), statuses={1: failed}))
    assert found.attempt == 1
    assert found.reason == "RankFailed"
    assert (found.pod, found.node) == ("digits-1", "machine-1")
    assert (found.rank, found.exit_code, found.signal) == (3, 7, None)
    assert found.message == "rank 3 on digits-1 failed: ValueError: no"
    assert found.traceback == "T\nE: no"
    assert found.time == after(-1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rank": 3, "exit_code": 7}, "rank 3 on digits-1 failed with exit code 7"),
        ({"rank": 3, "signal": "SIGKILL"}, "rank 3 on digits-1 was killed by SIGKILL"),
        (
            {"rank": 3, "signal": "SIGBUS", "message": "bus"},
            "rank 3 on digits-1 was killed by SIGBUS: bus",
        ),
        ({"rank": None, "message": "torchrun: no"}, "digits-1 failed: torchrun: no"),
    ],
    ids=["exit code", "signal", "signal and message", "no rank known"],
)
def test_message_names_the_failed_rank_and_its_exit_code_or_signal(
    given: dict[str, Any], message: str
) -> None:
    job = active_job()
    plan = plan_for(job, all_pods(job), statuses={1: failed_status(1, **given)})
    assert failure(plan).message == message
    assert summary(plan.status) == (
        "Unknown",
        "Recovering",
        f"attempt 2 starts because {message}",
    )
    assert [(e.type.value, e.reason, e.message) for e in plan.events] == [
        ("Warning", "Restarting", f"attempt 2 starts because {message}")
    ]


@pytest.mark.parametrize(
    "formed", [False, True], ids=["before all ranks joined", "after all ranks joined"]
)
def test_failed_rank_ends_the_attempt(formed: bool) -> None:
    job = active_job(formed=formed)
    plan = plan_for(job, all_pods(job, ready=False), statuses={0: failed_status(0)})
    assert (plan.status.attempt, plan.status.restarts) == (2, 1)


def test_pod_lost_before_all_ranks_joined_is_recreated_in_the_same_attempt() -> None:
    job = active_job(formed=False)
    plan = plan_for(job, [pod(job, 0)])
    assert (plan.status.attempt, plan.status.restarts) == (1, 0)
    assert recreated(plan) == ["digits-1"]


def test_pod_lost_after_all_ranks_joined_ends_the_attempt() -> None:
    job = active_job()
    plan = plan_for(job, [pod(job, 0)])
    assert (plan.status.attempt, plan.status.infrastructure_restarts) == (2, 1)
    assert failure(plan).reason == "PodLost"
    assert failure(plan).message == "digits-1 was deleted"
    assert restarted_in_place(plan) == {"digits-0": "2"}
    assert recreated(plan) == ["digits-1"]


@pytest.mark.parametrize("milestone", ["launched", "joined"])
@pytest.mark.parametrize("gone", [True, False])
def test_pod_lost_before_every_pod_was_ready_ends_the_attempt(gone: bool, milestone: str) -> None:
    """A peer that has started torchrun or has joined proves that the lost pod had started."""
    job = active_job(formed=False)
    lost = [] if gone else [pod(job, 1, deleting=True)]
    seen = {"ordered": after(-9).timestamp(), milestone: after(-5).timestamp()}
    statuses = {0: agent_status(0, phase="Starting", timeline=Timeline(**seen))}
    plan = plan_for(job, [pod(job, 0), *lost], statuses=statuses)
    assert plan.status.attempt == 2
    assert (failure(plan).reason, failure(plan).pod) == ("PodLost", "digits-1")


def test_pod_being_deleted_after_all_ranks_joined_ends_the_attempt() -> None:
    job = active_job()
    plan = plan_for(job, [pod(job, 0), pod(job, 1, deleting=True)])
    assert plan.status.attempt == 2
    assert failure(plan).message == "digits-1 was deleted"
    assert failure(plan).node == "machine-1"
    assert plan.actions == (SetAttempt("digits-0", "uid-digits-0", "2"),)


DEAD: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "container out of memory": (
        {"termination": ended(137, reason="OOMKilled")},
        {
            "reason": "OOMKilled",
            "cause": Cause.APPLICATION,
            "message": "digits-1 ran out of memory",
            "exit_code": 137,
        },
    ),
    "agent crashed": (
        {"termination": ended(139)},
        {
            "reason": "PodFailed",
            "cause": Cause.APPLICATION,
            "message": "digits-1 ended with exit code 139",
            "exit_code": 139,
        },
    ),
    "evicted": (
        {"reason": "Evicted"},
        {
            "reason": "Evicted",
            "cause": Cause.INFRASTRUCTURE,
            "message": "digits-1 failed: Evicted",
        },
    ),
    "no reason": (
        {},
        {
            "reason": "PodFailed",
            "cause": Cause.INFRASTRUCTURE,
            "message": "digits-1 failed: PodFailed",
        },
    ),
    "rank out of memory, reported by the agent": (
        {"termination": ended(137, reason="OOMKilled", final=failed_status(1, signal="SIGKILL"))},
        {"reason": "OOMKilled", "cause": Cause.APPLICATION, "signal": "SIGKILL", "rank": 1},
    ),
    "failed rank, reported by the agent": (
        {"termination": ended(1, final=failed_status(1, message="E: x"))},
        {"reason": "RankFailed", "message": "rank 1 on digits-1 failed: E: x"},
    ),
}


@pytest.mark.parametrize(("fields", "expected"), DEAD.values(), ids=DEAD.keys())
def test_dead_pod_is_recreated_and_living_pods_restart_in_place(
    fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    job = active_job()
    dead = pod(job, 1, phase="Failed", ready=False, **fields)
    plan = plan_for(job, [pod(job, 0), dead])
    assert plan.status.attempt == 2
    assert plan.status.restarts + plan.status.infrastructure_restarts == 1
    assert expected.items() <= dict(failure(plan)).items()
    assert restarted_in_place(plan) == {"digits-0": "2"}
    assert recreated(plan) == ["digits-1"]


def test_succeeded_pod_runs_again_when_a_peer_fails() -> None:
    job = active_job()
    done = pod(job, 0, phase="Succeeded", ready=False)
    plan = plan_for(job, [done, pod(job, 1)], statuses={1: failed_status(1)})
    assert plan.status.attempt == 2
    assert recreated(plan) == ["digits-0"]
    assert restarted_in_place(plan) == {"digits-1": "2"}


def test_report_about_an_earlier_attempt_is_no_fault() -> None:
    job = active_job(attempt=2, formed=False)
    plan = plan_for(job, all_pods(job), statuses={0: failed_status(0, attempt=1)})
    assert plan.status.attempt == 2


def test_failed_pod_of_an_earlier_attempt_is_no_fault() -> None:
    job = active_job(attempt=2, formed=False)
    plan = plan_for(job, [pod(job, 0), pod(job, 1, phase="Failed", attempt="1")])
    assert plan.status.attempt == 2
    assert recreated(plan) == ["digits-1"]


# --- Root cause of several faults --------------------------------------------------------------


def test_earliest_fault_is_the_root_cause() -> None:
    job = active_job(nodes=3)
    statuses = {
        0: failed_status(0, at=after(-1).timestamp(), message="late"),
        2: failed_status(2, at=after(-3).timestamp(), message="early"),
    }
    assert failure(plan_for(job, all_pods(job), statuses=statuses)).pod == "digits-2"


def test_secondary_failure_is_not_the_root_cause() -> None:
    job = active_job()
    statuses = {
        0: failed_status(0, at=after(-3).timestamp(), secondary=True, message="peer gone"),
        1: failed_status(1, at=after(-1).timestamp(), message="the cause"),
    }
    plan = plan_for(job, all_pods(job), statuses=statuses)
    assert failure(plan).pod == "digits-1"
    assert plan.status.restarts == 1


def test_lost_pod_is_the_root_cause_of_secondary_failures() -> None:
    job = active_job()
    plan = plan_for(job, [pod(job, 0)], statuses={0: failed_status(0, secondary=True)})
    assert failure(plan).reason == "PodLost"


@pytest.mark.parametrize("skew", [-3600, 0, 3600])
@pytest.mark.parametrize(
    ("seconds", "acted"),
    [(None, False), (0.0, False), (1.9, False), (2.0, True), (60.0, True)],
    ids=["first look", "0 s", "1.9 s", "2 s", "60 s"],
)
def test_operator_waits_two_seconds_for_the_root_cause_whatever_the_clocks_show(
    seconds: float | None, acted: bool, skew: float
) -> None:
    """The clock of the failed pod's Kubernetes node may be an hour ahead or behind."""
    job = active_job()
    statuses = {0: failed_status(0, at=after(skew).timestamp(), secondary=True)}
    plan = plan_for(job, all_pods(job), statuses=statuses, undecided=seconds)
    assert plan.undecided is not acted
    assert plan.status.attempt == (2 if acted else 1)
    if not acted:
        assert plan.actions == ()
        assert 0 < (plan.requeue_seconds or 0) <= 0.5


def test_several_faults_of_one_attempt_cost_one_restart() -> None:
    job = active_job(nodes=3)
    statuses = {i: failed_status(i) for i in range(3)}
    plan = plan_for(job, all_pods(job), statuses=statuses)
    assert (plan.status.attempt, plan.status.restarts) == (2, 1)


# --- Budgets ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("allowed", "restarts", "ends"),
    [(0, 0, True), (1, 0, False), (1, 1, True), (3, 2, False), (3, 3, True), (3, 4, True)],
    ids=["none allowed", "1 of 1", "2 of 1", "3 of 3", "4 of 3", "limit lowered below the count"],
)
def test_max_restarts_limits_the_number_of_retried_failures(
    allowed: int, restarts: int, ends: bool
) -> None:
    job = active_job(attempt=restarts + 1, status={"restarts": restarts}, maxRestarts=allowed)
    failed = failed_status(0, attempt=restarts + 1, message="E: x")
    plan = plan_for(job, all_pods(job), statuses={0: failed})
    if not ends:
        assert (plan.status.attempt, plan.status.restarts) == (restarts + 2, restarts + 1)
        return
    assert plan.status.attempt == restarts + 1
    assert plan.status.restarts == restarts
    why = f"(attempt {restarts + 1} is not retried: maxRestarts is {allowed})"
    assert summary(plan.status) == (
        "False",
        "Failed",
        f"rank 0 on digits-0 failed: E: x {why}",
    )
    assert plan.status.completion_time == after(0)
    assert [e.type.value for e in plan.events] == ["Warning"]


def preempted(job: Any, how: str) -> tuple[PodView, dict[int, Any]]:
    if how == "agent report":
        return pod(job, 1), {1: agent_status(1, phase="Preempted")}
    final = agent_status(1, phase="Preempted") if how == "termination message" else None
    end = ended(ExitCode.PREEMPTED, final=final)
    return pod(job, 1, phase="Failed", ready=False, termination=end), {}


@pytest.mark.parametrize("how", ["agent report", "termination message", "exit code"])
def test_preempted_pod_costs_no_restart(how: str) -> None:
    job = active_job(maxRestarts=0)
    seen, statuses = preempted(job, how)
    plan = plan_for(job, [pod(job, 0), seen], statuses=statuses)
    assert (plan.status.attempt, plan.status.restarts) == (2, 0)
    assert failure(plan).reason == "Preempted"
    assert restarted_in_place(plan)["digits-0"] == "2"


@pytest.mark.parametrize("how", ["agent report", "exit code"])
def test_bad_input_is_never_retried(how: str) -> None:
    job = active_job(maxRestarts=10)
    seen, statuses = (
        pod(job, 0),
        {0: failed_status(0, exit_code=ExitCode.BAD_INPUT, message="no data")},
    )
    if how == "exit code":
        seen, statuses = pod(job, 0, phase="Failed", termination=ended(ExitCode.BAD_INPUT)), {}
    plan = plan_for(job, [seen, pod(job, 1)], statuses=statuses)
    assert (plan.status.attempt, plan.status.restarts) == (1, 0)
    assert reason(plan.status) == "Failed"
    assert summary(plan.status)[2].endswith(
        "(attempt 1 is not retried: exit code 2 means invalid input)"
    )
    assert plan.status.condition(ConditionType.PODS_READY) is not None


def test_bad_input_takes_precedence_over_an_earlier_fault() -> None:
    job = active_job()
    statuses = {
        0: failed_status(0, at=after(-9).timestamp()),
        1: failed_status(1, exit_code=ExitCode.BAD_INPUT, message="no data"),
    }
    assert failure(plan_for(job, all_pods(job), statuses=statuses)).reason == "BadInput"


# --- A pod that got an order for an attempt while it ended -------------------------------------


def test_pod_that_ended_before_it_ran_this_attempt_is_recreated() -> None:
    """The pod got the order for attempt 2 while its container completed attempt 1."""
    job = active_job(attempt=2, formed=False, status={"last_failure": last_failure()})
    final = agent_status(0, attempt=1, phase="Succeeded")
    early = pod(job, 0, phase="Succeeded", ready=False, termination=ended(0, final=final))
    plan = plan_for(job, [early, pod(job, 1, ready=False)])
    assert plan.status.attempt == 2
    assert recreated(plan) == ["digits-0"]


def test_job_does_not_complete_with_pods_of_two_attempts() -> None:
    """Pod 0 got the order for attempt 2 while it completed attempt 1. Pod 1 has run attempt 2."""
    job = active_job(attempt=2, formed=False)
    seen = [
        pod(
            job,
            index,
            phase="Succeeded",
            ready=False,
            termination=ended(0, final=agent_status(index, attempt=ran, phase="Succeeded")),
        )
        for index, ran in enumerate([1, 2])
    ]
    assert reason(plan_for(job, seen).status) != "Completed"


def test_preemption_that_is_observed_twice_ends_one_attempt() -> None:
    """The agent reports the preemption first. The container ends later, in attempt 2."""
    job = active_job(attempt=2, formed=False)
    end = ended(ExitCode.PREEMPTED, final=agent_status(1, attempt=1, phase="Preempted"))
    plan = plan_for(job, [pod(job, 0), pod(job, 1, phase="Failed", ready=False, termination=end)])
    assert plan.status.attempt == 2
    assert recreated(plan) == ["digits-1"]
    assert (
        contract.ANNOTATION_ATTEMPT
        in only(plan.actions, CreatePod)[0].manifest["metadata"]["annotations"]
    )
