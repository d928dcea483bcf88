"""Attempts without progress: what is replaced because of them, and when there is no next rung."""

from typing import Any

import pytest

from ddp_operator.api.status import Cause, CheckpointStatus, ProgressStatus, StrikeStatus
from ddp_operator.builders.pod import build_pod
from ddp_operator.reconcile.plan import CreatePod, DeletePod, SetAttempt
from ddp_wire.contract import AgentStatus, CheckpointInfo
from tests.operator.support import (
    DEFAULTS,
    NOW,
    active_job,
    after,
    all_pods,
    ended,
    failed_word,
    last_failure,
    new_job,
    only,
    plan_for,
    pod,
    reason,
    summary,
    with_status,
    word,
)

SAVES: dict[str, Any] = {"checkpoint": {"claimName": "shared"}, "maxRestarts": 9}
COMMAND: dict[str, Any] = {**SAVES, "command": ["python", "train.py"]}


def saved(step: int | None) -> CheckpointStatus | None:
    return None if step is None else CheckpointStatus(step=step, path="/checkpoints/a", time=NOW)


def saving(attempt: int, step: int, **more: Any) -> AgentStatus:
    at = CheckpointInfo(step=step, path="/checkpoints/a", at=NOW.timestamp())
    return word(0, attempt=attempt, checkpoint=at, **more)


def strike(node: str, count: int, age: float = 0) -> StrikeStatus:
    return StrikeStatus(node=node, count=count, last_time=after(age))


# --- What is a stalled attempt ------------------------------------------------------------------

STALLED: dict[str, tuple[dict[str, Any], int | None, int | None, int]] = {
    "nothing was ever saved": (SAVES, None, None, 2),
    "nothing new": (SAVES, 40, 40, 2),
    "the first step": (SAVES, None, 40, 0),
    "a newer step": (SAVES, 40, 60, 0),
    "a step behind one that was not whole": (SAVES, 40, 20, 0),
    "a job that does not save": ({"maxRestarts": 9}, None, None, 1),
    "a command that has never told of a step": (COMMAND, None, None, 1),
    "a command that has": (COMMAND, 40, 40, 2),
}


@pytest.mark.parametrize(("spec", "start", "newest", "count"), STALLED.values(), ids=STALLED.keys())
@pytest.mark.parametrize("how", ["a rank fell", "a pod was lost"])
def test_an_attempt_that_saved_nothing_new_is_a_stalled_one(
    how: str, spec: dict[str, Any], start: int | None, newest: int | None, count: int
) -> None:
    status = {"stalled_attempts": 1, "attempt_start_step": start, "last_checkpoint": saved(newest)}
    job = active_job(status=status, **spec)
    if how == "a rank fell":
        plan = plan_for(job, all_pods(job), words={1: failed_word(1)})
    else:
        plan = plan_for(job, [pod(job, 0)])
    assert (plan.status.attempt, plan.status.stalled_attempts) == (2, count)
    assert plan.status.attempt_start_step == newest


def test_a_step_that_the_last_word_tells_of_counts() -> None:
    job = active_job(status={"attempt_start_step": 40, "last_checkpoint": saved(40)}, **SAVES)
    told = saving(1, 60).model_copy(update=dict(failed_word(0)) | {"checkpoint": None})
    assert plan_for(job, all_pods(job), words={0: told}).status.stalled_attempts == 1
    told = told.model_copy(update={"checkpoint": saving(1, 60).checkpoint})
    plan = plan_for(job, all_pods(job), words={0: told})
    assert (plan.status.stalled_attempts, plan.status.attempt_start_step) == (0, 60)


FREE_ENDS: dict[str, tuple[int, int]] = {"nothing new": (40, 1), "a newer step": (60, 0)}


@pytest.mark.parametrize(("newest", "count"), FREE_ENDS.values(), ids=FREE_ENDS.keys())
def test_a_stop_on_request_is_no_stall_and_ends_no_row_of_them(newest: int, count: int) -> None:
    status = {"stalled_attempts": 1, "attempt_start_step": 40, "last_checkpoint": saved(newest)}
    job = active_job(status=status, **SAVES)
    plan = plan_for(job, all_pods(job), words={1: word(1, phase="Preempted")})
    assert (plan.status.attempt, plan.status.stalled_attempts) == (2, count)


def test_a_saved_step_ends_the_row_as_soon_as_it_is_known() -> None:
    job = active_job(status={"stalled_attempts": 2}, **SAVES)
    plan = plan_for(job, all_pods(job), words={0: saving(1, 20)})
    assert (plan.status.attempt, plan.status.stalled_attempts) == (1, 0)


def test_a_changed_spec_ends_the_row() -> None:
    job = active_job(status={"stalled_attempts": 2}, **SAVES)
    edited = with_status(new_job(nodes=2, image="other:1", **SAVES), **dict(job.status))
    assert plan_for(edited, all_pods(job)).status.stalled_attempts == 0


# --- The end of the ladder ------------------------------------------------------------------------


def third(**more: Any) -> Any:
    return active_job(attempt=3, status={"stalled_attempts": 2, "restarts": 2}, **SAVES | more)


def test_the_third_stalled_attempt_in_a_row_fails_the_job() -> None:
    job = third()
    plan = plan_for(job, all_pods(job), words={1: failed_word(1, attempt=3, message="E: x")})
    said = "rank 1 on digits-1 failed: E: x (3 attempts in a row without a newly saved step)"
    assert summary(plan.status) == ("False", "Failed", said)
    assert (plan.status.stalled_attempts, plan.status.restarts) == (3, 2)


def test_a_third_attempt_that_is_stopped_on_request_does_not() -> None:
    job = third()
    plan = plan_for(job, all_pods(job), words={1: word(1, attempt=3, phase="Preempted")})
    assert (plan.status.attempt, plan.status.stalled_attempts) == (4, 2)


ORDER: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "bad input": ({"maxRestarts": 2}, {"exit_code": 2}, "(not retried)"),
    "a spent budget": ({"maxRestarts": 2}, {}, "(attempt 3, maxRestarts 2)"),
    "no progress": ({}, {}, "(3 attempts in a row without a newly saved step)"),
}


@pytest.mark.parametrize(("spec", "how", "said"), ORDER.values(), ids=ORDER.keys())
def test_of_several_reasons_to_give_up_the_strongest_is_told(
    spec: dict[str, Any], how: dict[str, Any], said: str
) -> None:
    job = third(**spec)
    plan = plan_for(job, all_pods(job), words={1: failed_word(1, attempt=3, **how)})
    assert reason(plan.status) == "Failed"
    assert summary(plan.status)[2].endswith(f" {said}")


# --- What is replaced -------------------------------------------------------------------------

RUNGS: dict[str, tuple[int, Cause, set[str]]] = {
    "no stalled attempt": (0, Cause.APPLICATION, set()),
    "one": (1, Cause.APPLICATION, {"digits-1"}),
    "one, by a lost node": (1, Cause.INFRASTRUCTURE, {"digits-1"}),
    "two": (2, Cause.APPLICATION, {"digits-0", "digits-1", "digits-2"}),
    "two, but the last one was stopped on request": (2, Cause.FREE, set()),
}


@pytest.mark.parametrize(("count", "cause", "replaced"), RUNGS.values(), ids=RUNGS.keys())
def test_the_rungs(count: int, cause: Cause, replaced: set[str]) -> None:
    """What a look finds after the status was written, as by an operator that has just started."""
    status = {
        "stalled_attempts": count,
        "last_failure": last_failure(4, pod="digits-1", cause=cause),
    }
    job = active_job(nodes=3, attempt=5, formed=False, status=status, **SAVES)
    plan = plan_for(job, all_pods(job, attempt="4"))
    assert {a.name for a in only(plan.actions, DeletePod)} == replaced
    kept = {"digits-0", "digits-1", "digits-2"} - replaced
    assert {a.name: a.value for a in only(plan.actions, SetAttempt)} == dict.fromkeys(kept, "5")
    assert only(plan.actions, CreatePod) == []


def test_a_stalled_attempt_replaces_the_pod_in_which_its_cause_lay() -> None:
    job = active_job(nodes=3, **SAVES)
    plan = plan_for(job, all_pods(job), words={1: failed_word(1)})
    assert list(plan.actions) == [
        SetAttempt("digits-0", "uid-digits-0", "2"),
        DeletePod("digits-1", "uid-digits-1", None),
        SetAttempt("digits-2", "uid-digits-2", "2"),
    ]


REPLACED: dict[str, tuple[dict[str, Any], list[type[Any]]]] = {
    "it ends": ({"attempt": "1", "deleting": True}, []),
    "it has ended": (
        {"attempt": "1", "deleting": True, "phase": "Failed", "termination": ended(85)},
        [DeletePod, CreatePod],
    ),
    "it is made": ({"attempt": "2", "phase": "Pending", "ready": False}, []),
    "it starts": ({"attempt": "2", "ready": False}, []),
}


@pytest.mark.parametrize(("fields", "acts"), REPLACED.values(), ids=REPLACED.keys())
def test_a_pod_is_replaced_once_and_that_is_no_loss(
    fields: dict[str, Any], acts: list[type[Any]]
) -> None:
    status = {"stalled_attempts": 1, "last_failure": last_failure(1, pod="digits-1")}
    job = active_job(attempt=2, formed=False, status=status, **SAVES)
    plan = plan_for(job, [pod(job, 0), pod(job, 1, **fields)])
    assert (plan.status.attempt, plan.status.stalled_attempts) == (2, 1)
    assert [type(a) for a in plan.actions] == acts


def test_a_pod_that_is_gone_is_made_in_the_attempt_that_replaced_it() -> None:
    status = {"stalled_attempts": 1, "last_failure": last_failure(1, pod="digits-1")}
    job = active_job(attempt=2, formed=False, status=status, **SAVES)
    plan = plan_for(job, [pod(job, 0)])
    assert plan.status.attempt == 2
    assert [a.manifest["metadata"]["name"] for a in only(plan.actions, CreatePod)] == ["digits-1"]


# --- Strikes ------------------------------------------------------------------------------------


def test_each_node_on_which_a_stalled_attempt_had_a_cause_gets_a_strike() -> None:
    job = active_job(nodes=4, status={"strikes": [strike("machine-1", 1, -60)]}, **SAVES)
    words = {
        0: failed_word(0, secondary=True),
        1: failed_word(1),
        2: failed_word(2),
        3: word(3, phase="Preempted"),
    }
    plan = plan_for(job, all_pods(job), words=words)
    assert plan.status.strikes == [strike("machine-1", 2), strike("machine-2", 1)]


NO_STRIKE: dict[str, tuple[dict[str, Any], dict[str, Any], dict[int, AgentStatus]]] = {
    "the attempt had saved": (SAVES, {"last_checkpoint": saved(5)}, {1: failed_word(1)}),
    "the job does not save": ({}, {}, {1: failed_word(1)}),
    "stopped on request": (SAVES, {}, {1: word(1, phase="Preempted")}),
    "the cause is not known": (SAVES, {}, {1: failed_word(1, secondary=True, at=0.0)}),
}


@pytest.mark.parametrize(("spec", "status", "words"), NO_STRIKE.values(), ids=NO_STRIKE.keys())
def test_no_strike(
    spec: dict[str, Any], status: dict[str, Any], words: dict[int, AgentStatus]
) -> None:
    job = active_job(status=status, **spec)
    plan = plan_for(job, all_pods(job), words=words)
    assert plan.status.attempt == 2
    assert plan.status.strikes == []


def test_the_status_remembers_the_strikes_of_32_nodes() -> None:
    known = [strike(f"old-{i:02}", 1, -60) for i in range(32)]
    job = active_job(status={"strikes": known}, **SAVES)
    plan = plan_for(job, all_pods(job), words={1: failed_word(1)})
    assert plan.status.strikes == [*known[1:], strike("machine-1", 1)]


def test_the_pods_that_follow_the_second_strike_avoid_its_node() -> None:
    """The same look that counts it makes them: what it writes is what they are made by."""
    status = {"stalled_attempts": 1, "strikes": [strike("machine-1", 1, -60)]}
    job = active_job(status=status, **SAVES)
    dead = pod(job, 1, phase="Failed", ready=False, termination=ended(1))
    plan = plan_for(job, [pod(job, 0), dead])
    (made,) = only(plan.actions, CreatePod)
    assert avoided(made.manifest) == ["machine-1"]


def avoided(manifest: dict[str, Any]) -> list[str]:
    affinity = manifest["spec"]["affinity"]["nodeAffinity"]
    (wish,) = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
    assert wish["weight"] == 100
    (term,) = wish["preference"]["matchExpressions"]
    assert (term["key"], term["operator"]) == ("kubernetes.io/hostname", "NotIn")
    values: list[str] = term["values"]
    return values


def built(*strikes: StrikeStatus, **spec: Any) -> dict[str, Any]:
    return build_pod(with_status(new_job(**spec), strikes=list(strikes)), 0, 1, DEFAULTS)


def test_a_pod_would_rather_not_run_on_nodes_with_two_strikes() -> None:
    assert "affinity" not in built()["spec"]
    assert "affinity" not in built(strike("a", 1))["spec"]
    assert avoided(built(strike("b", 2), strike("c", 1), strike("a", 7))) == ["a", "b"]


def test_what_the_template_says_about_the_place_stands_beside_that_and_wins() -> None:
    zone = {"key": "zone", "operator": "In", "values": ["z"]}
    must = {"nodeSelectorTerms": [{"matchExpressions": [zone]}]}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    template = {"spec": {"affinity": {"nodeAffinity": {required: must}, "podAffinity": {"x": 1}}}}
    found = built(strike("a", 2), podTemplate=template)
    assert avoided(found) == ["a"]
    assert found["spec"]["affinity"]["nodeAffinity"][required] == must
    assert found["spec"]["affinity"]["podAffinity"] == {"x": 1}
    own = [{"weight": 1, "preference": {"matchExpressions": [zone]}}]
    wish = "preferredDuringSchedulingIgnoredDuringExecution"
    template = {"spec": {"affinity": {"nodeAffinity": {wish: own}}}}
    found = built(strike("a", 2), podTemplate=template)
    assert found["spec"]["affinity"] == {"nodeAffinity": {wish: own}}


def test_what_was_saved_a_moment_before_the_end_counts() -> None:
    """While it trained the status may have been some seconds behind."""
    shown = ProgressStatus(step=1, time=NOW)
    job = active_job(
        status={"attempt_start_step": 20, "last_checkpoint": saved(20), "progress": shown},
        **SAVES,
    )
    words = {0: saving(1, 40), 1: failed_word(1)}
    plan = plan_for(job, all_pods(job), now=after(1), words=words)
    assert plan.status.attempt == 2
    assert plan.status.stalled_attempts == 0
    assert plan.status.last_checkpoint is not None
    assert plan.status.last_checkpoint.step == 40
