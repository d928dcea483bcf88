"""What ends an attempt, what it costs, and what is done about it."""

from typing import Any

import pytest

from ddp_operator.api.status import Cause, ConditionType
from ddp_operator.reconcile.plan import CreatePod, DeletePod, Plan, SetAttempt
from ddp_operator.reconcile.world import PodView
from ddp_wire import contract
from ddp_wire.contract import ExitCode
from tests.operator.support import (
    active_job,
    after,
    all_pods,
    ended,
    failed_word,
    last_failure,
    only,
    plan_for,
    pod,
    reason,
    summary,
    word,
)


def failure(plan: Plan) -> Any:
    assert plan.status.last_failure is not None
    return plan.status.last_failure


def told(plan: Plan) -> dict[str, str]:
    """Living pods that are told of an attempt."""
    return {a.name: a.value for a in only(plan.actions, SetAttempt)}


def recreated(plan: Plan) -> list[str]:
    gone = [a.name for a in only(plan.actions, DeletePod)]
    made = [a.manifest["metadata"]["name"] for a in only(plan.actions, CreatePod)]
    assert set(gone) <= set(made)
    return made


def test_a_fallen_rank_restarts_all_pods_in_place() -> None:
    job = active_job(nodes=3)
    fallen = failed_word(1, rank=1, message="ValueError: no", traceback="Traceback\nValueError: no")
    plan = plan_for(job, all_pods(job), words={0: word(0), 1: fallen, 2: word(2)})
    assert (plan.status.attempt, plan.status.restarts) == (2, 1)
    assert told(plan) == {"digits-0": "2", "digits-1": "2", "digits-2": "2"}
    assert len(plan.actions) == 3
    assert plan.status.attempt_start_time == after(0)


def test_the_status_tells_who_fell_where_and_why() -> None:
    job = active_job()
    fallen = failed_word(1, rank=3, exit_code=7, message="ValueError: no", traceback="T\nE: no")
    told_of = failure(plan_for(job, all_pods(job), words={1: fallen}))
    assert told_of.attempt == 1
    assert told_of.reason == "RankFailed"
    assert (told_of.pod, told_of.node) == ("digits-1", "machine-1")
    assert (told_of.rank, told_of.exit_code, told_of.signal) == (3, 7, None)
    assert told_of.message == "rank 3 on digits-1 failed: ValueError: no"
    assert told_of.traceback == "T\nE: no"
    assert told_of.time == after(-1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rank": 3, "exit_code": 7}, "rank 3 on digits-1 failed with exit code 7"),
        ({"rank": 3, "signal": "SIGKILL"}, "rank 3 on digits-1 was ended by SIGKILL"),
        (
            {"rank": 3, "signal": "SIGBUS", "message": "bus"},
            "rank 3 on digits-1 was ended by SIGBUS: bus",
        ),
        ({"rank": None, "message": "torchrun: no"}, "digits-1 failed: torchrun: no"),
    ],
    ids=["exit code", "signal", "signal and words", "no rank to blame"],
)
def test_the_sentence_about_a_fallen_rank(given: dict[str, Any], message: str) -> None:
    job = active_job()
    plan = plan_for(job, all_pods(job), words={1: failed_word(1, **given)})
    assert failure(plan).message == message
    assert summary(plan.status) == (
        "Unknown",
        "Recovering",
        f"attempt 2 follows because {message}",
    )
    assert [(e.type.value, e.reason, e.message) for e in plan.events] == [
        ("Warning", "Restarting", f"attempt 2 follows because {message}")
    ]


@pytest.mark.parametrize("formed", [False, True], ids=["before formation", "after formation"])
def test_a_fallen_rank_ends_the_attempt(formed: bool) -> None:
    job = active_job(formed=formed)
    plan = plan_for(job, all_pods(job, ready=False), words={0: failed_word(0)})
    assert (plan.status.attempt, plan.status.restarts) == (2, 1)


def test_a_pod_that_vanishes_before_formation_is_created_and_the_rest_waits() -> None:
    job = active_job(formed=False)
    plan = plan_for(job, [pod(job, 0)])
    assert (plan.status.attempt, plan.status.restarts) == (1, 0)
    assert recreated(plan) == ["digits-1"]


def test_a_pod_that_vanishes_after_formation_ends_the_attempt() -> None:
    job = active_job()
    plan = plan_for(job, [pod(job, 0)])
    assert (plan.status.attempt, plan.status.infrastructure_restarts) == (2, 1)
    assert failure(plan).reason == "PodLost"
    assert failure(plan).message == "digits-1 was deleted"
    assert told(plan) == {"digits-0": "2"}
    assert recreated(plan) == ["digits-1"]


def test_a_pod_that_is_being_deleted_after_formation_ends_the_attempt_at_once() -> None:
    job = active_job()
    plan = plan_for(job, [pod(job, 0), pod(job, 1, deleting=True)])
    assert plan.status.attempt == 2
    assert failure(plan).message == "digits-1 is being deleted"
    assert failure(plan).node == "machine-1"
    assert plan.actions == (SetAttempt("digits-0", "uid-digits-0", "2"),)


DEAD: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "killed for memory": (
        {"termination": ended(137, reason="OOMKilled")},
        {
            "reason": "OOMKilled",
            "cause": Cause.APPLICATION,
            "message": "digits-1 ran out of memory",
            "exit_code": 137,
        },
    ),
    "a crash of the agent": (
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
    "a rank's memory, in the agent's word": (
        {"termination": ended(137, reason="OOMKilled", final=failed_word(1, signal="SIGKILL"))},
        {"reason": "OOMKilled", "cause": Cause.APPLICATION, "signal": "SIGKILL", "rank": 1},
    ),
    "an agent that gave up waiting": (
        {"termination": ended(1, final=failed_word(1, message="E: x"))},
        {"reason": "RankFailed", "message": "rank 1 on digits-1 failed: E: x"},
    ),
}


@pytest.mark.parametrize(("fields", "expected"), DEAD.values(), ids=DEAD.keys())
def test_a_dead_pod_is_recreated_and_living_ones_are_told(
    fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    job = active_job()
    dead = pod(job, 1, phase="Failed", ready=False, **fields)
    plan = plan_for(job, [pod(job, 0), dead])
    assert plan.status.attempt == 2
    assert plan.status.restarts + plan.status.infrastructure_restarts == 1
    assert expected.items() <= dict(failure(plan)).items()
    assert told(plan) == {"digits-0": "2"}
    assert recreated(plan) == ["digits-1"]


def test_a_pod_that_had_succeeded_runs_again_when_a_peer_falls() -> None:
    job = active_job()
    done = pod(job, 0, phase="Succeeded", ready=False)
    plan = plan_for(job, [done, pod(job, 1)], words={1: failed_word(1)})
    assert plan.status.attempt == 2
    assert recreated(plan) == ["digits-0"]
    assert told(plan) == {"digits-1": "2"}


def test_the_word_about_an_earlier_attempt_is_no_loss_in_this_one() -> None:
    job = active_job(attempt=2, formed=False)
    plan = plan_for(job, all_pods(job), words={0: failed_word(0, attempt=1)})
    assert plan.status.attempt == 2


def test_a_failed_pod_of_an_earlier_attempt_is_no_loss_in_this_one() -> None:
    job = active_job(attempt=2, formed=False)
    plan = plan_for(job, [pod(job, 0), pod(job, 1, phase="Failed", attempt="1")])
    assert plan.status.attempt == 2
    assert recreated(plan) == ["digits-1"]


# --- Of several losses, the cause -------------------------------------------------------------


def test_the_first_loss_by_time_is_the_cause() -> None:
    job = active_job(nodes=3)
    words = {
        0: failed_word(0, at=after(-1).timestamp(), message="late"),
        2: failed_word(2, at=after(-3).timestamp(), message="early"),
    }
    assert failure(plan_for(job, all_pods(job), words=words)).pod == "digits-2"


def test_a_rank_that_fell_because_its_peer_had_gone_is_not_the_cause() -> None:
    job = active_job()
    words = {
        0: failed_word(0, at=after(-3).timestamp(), secondary=True, message="peer gone"),
        1: failed_word(1, at=after(-1).timestamp(), message="the cause"),
    }
    plan = plan_for(job, all_pods(job), words=words)
    assert failure(plan).pod == "digits-1"
    assert plan.status.restarts == 1


def test_a_lost_pod_is_the_cause_of_what_its_peers_report() -> None:
    job = active_job()
    plan = plan_for(job, [pod(job, 0)], words={0: failed_word(0, secondary=True)})
    assert failure(plan).reason == "PodLost"


@pytest.mark.parametrize(
    ("age", "acted"),
    [(0.0, False), (1.9, False), (2.0, True), (60.0, True), (-5.0, True)],
    ids=["just now", "1.9 s", "2 s", "a minute", "a clock that is ahead"],
)
def test_secondary_losses_wait_two_seconds_for_their_cause(age: float, acted: bool) -> None:
    job = active_job()
    words = {0: failed_word(0, at=after(-age).timestamp(), secondary=True)}
    plan = plan_for(job, all_pods(job), words=words)
    assert plan.status.attempt == (2 if acted else 1)
    if not acted:
        assert plan.actions == ()
        assert plan.requeue_seconds is not None
        assert plan.requeue_seconds <= 0.5


def test_several_losses_of_one_attempt_cost_one_restart() -> None:
    job = active_job(nodes=3)
    words = {i: failed_word(i) for i in range(3)}
    plan = plan_for(job, all_pods(job), words=words)
    assert (plan.status.attempt, plan.status.restarts) == (2, 1)


# --- What it costs ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("allowed", "restarts", "ends"),
    [(0, 0, True), (1, 0, False), (1, 1, True), (3, 2, False), (3, 3, True), (3, 4, True)],
    ids=["none allowed", "1 of 1", "2 of 1", "3 of 3", "4 of 3", "lowered below what is spent"],
)
def test_max_restarts_is_the_number_of_failures_that_are_followed(
    allowed: int, restarts: int, ends: bool
) -> None:
    job = active_job(attempt=restarts + 1, status={"restarts": restarts}, maxRestarts=allowed)
    fallen = failed_word(0, attempt=restarts + 1, message="E: x")
    plan = plan_for(job, all_pods(job), words={0: fallen})
    if not ends:
        assert (plan.status.attempt, plan.status.restarts) == (restarts + 2, restarts + 1)
        return
    assert plan.status.attempt == restarts + 1
    assert plan.status.restarts == restarts
    spent = f"(attempt {restarts + 1}, maxRestarts {allowed})"
    assert summary(plan.status) == (
        "False",
        "Failed",
        f"rank 0 on digits-0 failed: E: x {spent}",
    )
    assert plan.status.completion_time == after(0)
    assert [e.type.value for e in plan.events] == ["Warning"]


def preempted(job: Any, how: str) -> tuple[PodView, dict[int, Any]]:
    if how == "the agent's word":
        return pod(job, 1), {1: word(1, phase="Preempted")}
    final = word(1, phase="Preempted") if how == "the last word" else None
    gone = ended(ExitCode.PREEMPTED, final=final)
    return pod(job, 1, phase="Failed", ready=False, termination=gone), {}


@pytest.mark.parametrize("how", ["the agent's word", "the last word", "the exit code alone"])
def test_a_preempted_pod_costs_nothing(how: str) -> None:
    job = active_job(maxRestarts=0)
    seen, words = preempted(job, how)
    plan = plan_for(job, [pod(job, 0), seen], words=words)
    assert (plan.status.attempt, plan.status.restarts) == (2, 0)
    assert failure(plan).reason == "Preempted"
    assert told(plan)["digits-0"] == "2"


@pytest.mark.parametrize("how", ["word", "exit code"])
def test_bad_input_is_never_retried(how: str) -> None:
    job = active_job(maxRestarts=10)
    seen, words = pod(job, 0), {0: failed_word(0, exit_code=ExitCode.BAD_INPUT, message="no data")}
    if how == "exit code":
        seen, words = pod(job, 0, phase="Failed", termination=ended(ExitCode.BAD_INPUT)), {}
    plan = plan_for(job, [seen, pod(job, 1)], words=words)
    assert (plan.status.attempt, plan.status.restarts) == (1, 0)
    assert reason(plan.status) == "Failed"
    assert summary(plan.status)[2].endswith("(not retried)")
    assert plan.status.condition(ConditionType.PODS_READY) is not None


def test_bad_input_speaks_before_an_earlier_loss() -> None:
    job = active_job()
    words = {
        0: failed_word(0, at=after(-9).timestamp()),
        1: failed_word(1, exit_code=ExitCode.BAD_INPUT, message="no data"),
    }
    assert failure(plan_for(job, all_pods(job), words=words)).reason == "BadInput"


# --- A pod that was told of an attempt as it ended ---------------------------------------------


def test_a_pod_that_ended_before_it_ran_this_attempt_is_no_outcome_of_it() -> None:
    """Told of attempt 2 in the moment in which its container ended attempt 1 well."""
    job = active_job(attempt=2, formed=False, status={"last_failure": last_failure()})
    final = word(0, attempt=1, phase="Succeeded")
    early = pod(job, 0, phase="Succeeded", ready=False, termination=ended(0, final=final))
    plan = plan_for(job, [early, pod(job, 1, ready=False)])
    assert plan.status.attempt == 2
    assert recreated(plan) == ["digits-0"]


def test_a_run_is_not_complete_by_ranks_of_two_attempts() -> None:
    """Pod 0 was told of attempt 2 as it ended attempt 1, pod 1 has run attempt 2."""
    job = active_job(attempt=2, formed=False)
    seen = [
        pod(
            job,
            index,
            phase="Succeeded",
            ready=False,
            termination=ended(0, final=word(index, attempt=ran, phase="Succeeded")),
        )
        for index, ran in enumerate([1, 2])
    ]
    assert reason(plan_for(job, seen).status) != "Completed"


def test_one_preemption_is_one_attempt_though_it_is_seen_twice() -> None:
    """First in the agent's word, then in the container's end, told of attempt 2 meanwhile."""
    job = active_job(attempt=2, formed=False)
    gone = ended(ExitCode.PREEMPTED, final=word(1, attempt=1, phase="Preempted"))
    plan = plan_for(job, [pod(job, 0), pod(job, 1, phase="Failed", ready=False, termination=gone)])
    assert plan.status.attempt == 2
    assert recreated(plan) == ["digits-1"]
    assert (
        contract.ANNOTATION_ATTEMPT
        in only(plan.actions, CreatePod)[0].manifest["metadata"]["annotations"]
    )
