"""Stalled attempts: the pods that they replace, their strikes, and the limit that fails a job."""

from typing import Any

import pytest

from ddp_operator.api.status import Cause, CheckpointStatus, ProgressStatus, StrikeStatus
from ddp_operator.builders.affinity import STRIKE_LIFETIME
from ddp_operator.reconcile.plan import CreatePod, DeletePod, SetAttempt
from ddp_wire.messages import AgentPhase, AgentStatus, CheckpointInfo
from tests.operator.support import (
    NOW,
    active_job,
    after,
    agent_status,
    all_pods,
    ended,
    failed_status,
    last_failure,
    new_job,
    only,
    plan_for,
    pod,
    reason,
    summary,
    with_status,
)

SAVES: dict[str, Any] = {"checkpoint": {"claimName": "shared"}, "maxRestarts": 9}
COMMAND: dict[str, Any] = {**SAVES, "command": ["python", "train.py"]}


def saved(step: int | None) -> CheckpointStatus | None:
    return None if step is None else CheckpointStatus(step=step, path="/checkpoints/a", time=NOW)


def saving(attempt: int, step: int, **more: Any) -> AgentStatus:
    at = CheckpointInfo(step=step, path="/checkpoints/a", at=NOW.timestamp())
    return agent_status(0, attempt=attempt, checkpoint=at, **more)


def strike(node: str, count: int, age: float = 0) -> StrikeStatus:
    return StrikeStatus(node=node, count=count, last_time=after(age))


# --- Stalled attempts ---------------------------------------------------------------------------

STALLED: dict[str, tuple[dict[str, Any], int | None, int | None, int]] = {
    "no step was ever saved": (SAVES, None, None, 2),
    "no new step": (SAVES, 40, 40, 2),
    "first step": (SAVES, None, 40, 0),
    "newer step": (SAVES, 40, 60, 0),
    "step before an incomplete checkpoint": (SAVES, 40, 20, 0),
    "job without a checkpoint": ({"maxRestarts": 9}, None, None, 1),
    "command that never reported a step": (COMMAND, None, None, 1),
    "command that reported a step": (COMMAND, 40, 40, 2),
}


@pytest.mark.parametrize(("spec", "start", "newest", "count"), STALLED.values(), ids=STALLED.keys())
@pytest.mark.parametrize("how", ["rank failed", "pod lost"])
def test_attempt_without_a_newly_saved_step_counts_as_stalled(
    how: str, spec: dict[str, Any], start: int | None, newest: int | None, count: int
) -> None:
    status = {"stalled_attempts": 1, "attempt_start_step": start, "last_checkpoint": saved(newest)}
    job = active_job(status=status, **spec)
    if how == "rank failed":
        plan = plan_for(job, all_pods(job), statuses={1: failed_status(1)})
    else:
        plan = plan_for(job, [pod(job, 0)], statuses={0: agent_status(0)})
    assert (plan.status.attempt, plan.status.stalled_attempts) == (2, count)
    assert plan.status.attempt_start_step == newest


@pytest.mark.parametrize(
    ("reports", "count"),
    [
        ("none", 2),
        ("final, node 1", 2),
        ("final, node 0", 3),
        ("progress", 3),
        ("old progress", 2),
        ("progress of the second in which the attempt starts", 2),
    ],
)
def test_attempt_counts_as_stalled_only_if_the_operator_receives_reports(
    reports: str, count: int
) -> None:
    """An operator that cannot reach the agents sees no checkpoint, but the run may have saved."""
    times = {"progress": 5.0, "old progress": -5.0}
    seconds = 0.0 if reports.startswith("progress of") else times.get(reports)
    progress = None if seconds is None else ProgressStatus(step=1, time=after(seconds))
    job = active_job(status={"stalled_attempts": 2, "progress": progress}, **SAVES)
    dead = 0 if reports == "final, node 0" else 1
    final = None if seconds is not None or reports == "none" else failed_status(dead)
    end = ended(1, final=final)
    pods = [pod(job, dead, phase="Failed", ready=False, termination=end), pod(job, 1 - dead)]
    assert plan_for(job, pods).status.stalled_attempts == count


def test_checkpoint_in_the_last_report_counts_as_progress() -> None:
    job = active_job(status={"attempt_start_step": 40, "last_checkpoint": saved(40)}, **SAVES)
    report = saving(1, 60).model_copy(update=dict(failed_status(0)) | {"checkpoint": None})
    assert plan_for(job, all_pods(job), statuses={0: report}).status.stalled_attempts == 1
    report = report.model_copy(update={"checkpoint": saving(1, 60).checkpoint})
    plan = plan_for(job, all_pods(job), statuses={0: report})
    assert (plan.status.stalled_attempts, plan.status.attempt_start_step) == (0, 60)


@pytest.mark.parametrize(
    ("resumed", "kept", "count"), [(None, 7, 0), (40, 41, 0), (40, 40, 1), (None, None, 1)]
)
def test_state_that_a_pod_keeps_in_memory_counts_as_progress(
    resumed: int | None, kept: int | None, count: int
) -> None:
    job = active_job(status={"resumed_from_step": resumed}, **SAVES)
    report = failed_status(0).model_copy(update={"kept_step": kept})
    plan = plan_for(job, all_pods(job), statuses={0: report})
    assert plan.status.stalled_attempts == count


@pytest.mark.parametrize(
    ("other", "count"),
    [
        ({"phase": AgentPhase.FAILED, "kept_part_step": 41}, 0),
        ({"phase": AgentPhase.TRAINING}, 0),
        ({"phase": AgentPhase.FAILED}, 1),
        ({"phase": AgentPhase.FAILED, "kept_part_step": 42}, 1),
        (None, 1),
    ],
    ids=["whole", "not ended", "without the other part", "another update", "silent"],
)
def test_parts_in_memory_count_as_progress_if_they_may_be_whole(
    other: dict[str, Any] | None, count: int
) -> None:
    job = active_job(status={"resumed_from_step": 40}, **SAVES)
    statuses = {0: failed_status(0).model_copy(update={"kept_part_step": 41})}
    if other is not None:
        statuses[1] = agent_status(1).model_copy(update=other)
    plan = plan_for(job, all_pods(job), statuses=statuses)
    assert plan.status.stalled_attempts == count


def test_state_that_an_earlier_attempt_kept_is_no_progress() -> None:
    job = active_job(status={"attempt": 2}, **SAVES)
    old = agent_status(1, attempt=1).model_copy(update={"kept_step": 7})
    statuses = {0: failed_status(0, attempt=2), 1: old}
    assert plan_for(job, all_pods(job), statuses=statuses).status.stalled_attempts == 1


FREE_ENDS: dict[str, tuple[int, int]] = {"no new step": (40, 1), "newer step": (60, 0)}


@pytest.mark.parametrize(("newest", "count"), FREE_ENDS.values(), ids=FREE_ENDS.keys())
def test_stop_on_request_keeps_the_count_of_stalled_attempts(newest: int, count: int) -> None:
    status = {"stalled_attempts": 1, "attempt_start_step": 40, "last_checkpoint": saved(newest)}
    job = active_job(status=status, **SAVES)
    plan = plan_for(job, all_pods(job), statuses={1: agent_status(1, phase="Preempted")})
    assert (plan.status.attempt, plan.status.stalled_attempts) == (2, count)


def test_saved_step_resets_the_count_of_stalled_attempts() -> None:
    job = active_job(status={"stalled_attempts": 2}, **SAVES)
    plan = plan_for(job, all_pods(job), statuses={0: saving(1, 20)})
    assert (plan.status.attempt, plan.status.stalled_attempts) == (1, 0)


def test_changed_spec_resets_the_count_of_stalled_attempts() -> None:
    job = active_job(status={"stalled_attempts": 2}, **SAVES)
    edited = with_status(new_job(nodes=2, image="other:1", **SAVES), **dict(job.status))
    assert plan_for(edited, all_pods(job)).status.stalled_attempts == 0


# --- The limit of stalled attempts ----------------------------------------------------------------


def third(**more: Any) -> Any:
    return active_job(attempt=3, status={"stalled_attempts": 2, "restarts": 2}, **SAVES | more)


def test_third_stalled_attempt_in_a_row_fails_the_job() -> None:
    job = third()
    plan = plan_for(job, all_pods(job), statuses={1: failed_status(1, attempt=3, message="E: x")})
    why = "attempt 3 is not retried: 3 attempts in a row saved no new step"
    message = f"rank 1 on digits-1 failed: E: x ({why})"
    assert summary(plan.status) == ("False", "Failed", message)
    assert (plan.status.stalled_attempts, plan.status.restarts) == (3, 2)


def test_third_stalled_attempt_that_stops_on_request_does_not_fail_the_job() -> None:
    job = third()
    plan = plan_for(job, all_pods(job), statuses={1: agent_status(1, attempt=3, phase="Preempted")})
    assert (plan.status.attempt, plan.status.stalled_attempts) == (4, 2)


ORDER: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "bad input": ({"maxRestarts": 2}, {"exit_code": 2}, "exit code 2 means invalid input"),
    "budget used up": ({"maxRestarts": 2}, {}, "maxRestarts is 2"),
    "no progress": ({}, {}, "3 attempts in a row saved no new step"),
}


@pytest.mark.parametrize(("spec", "how", "why"), ORDER.values(), ids=ORDER.keys())
def test_message_names_the_strongest_reason_against_a_retry(
    spec: dict[str, Any], how: dict[str, Any], why: str
) -> None:
    job = third(**spec)
    plan = plan_for(job, all_pods(job), statuses={1: failed_status(1, attempt=3, **how)})
    assert reason(plan.status) == "Failed"
    assert summary(plan.status)[2].endswith(f"(attempt 3 is not retried: {why})")


# --- Replaced pods ----------------------------------------------------------------------------

REMEDIES: dict[str, tuple[int, Cause, set[str]]] = {
    "no stalled attempt": (0, Cause.APPLICATION, set()),
    "one stalled attempt": (1, Cause.APPLICATION, {"digits-1"}),
    "one stalled attempt, by a lost node": (1, Cause.INFRASTRUCTURE, {"digits-1"}),
    "two stalled attempts": (2, Cause.APPLICATION, {"digits-0", "digits-1", "digits-2"}),
    "two stalled attempts, then a stop on request": (2, Cause.FREE, set()),
}


@pytest.mark.parametrize(("count", "cause", "replaced"), REMEDIES.values(), ids=REMEDIES.keys())
def test_stalled_attempts_select_the_pods_to_replace(
    count: int, cause: Cause, replaced: set[str]
) -> None:
    """A restarted operator finds only the written status, and continues the escalation."""
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


def test_stalled_attempt_replaces_the_pod_of_its_root_cause() -> None:
    job = active_job(nodes=3, **SAVES)
    plan = plan_for(job, all_pods(job), statuses={1: failed_status(1)})
    assert list(plan.actions) == [
        SetAttempt("digits-0", "uid-digits-0", "2"),
        DeletePod("digits-1", "uid-digits-1", None),
        SetAttempt("digits-2", "uid-digits-2", "2"),
    ]


REPLACED: dict[str, tuple[dict[str, Any], list[type[Any]]]] = {
    "it is being deleted": ({"attempt": "1", "deleting": True}, []),
    "it has ended": (
        {"attempt": "1", "deleting": True, "phase": "Failed", "termination": ended(85)},
        [DeletePod, CreatePod],
    ),
    "it was recreated": ({"attempt": "2", "phase": "Pending", "ready": False}, []),
    "it starts": ({"attempt": "2", "ready": False}, []),
}


@pytest.mark.parametrize(("fields", "acts"), REPLACED.values(), ids=REPLACED.keys())
def test_pod_replacement_without_a_fault_happens_once(
    fields: dict[str, Any], acts: list[type[Any]]
) -> None:
    status = {"stalled_attempts": 1, "last_failure": last_failure(1, pod="digits-1")}
    job = active_job(attempt=2, formed=False, status=status, **SAVES)
    plan = plan_for(job, [pod(job, 0), pod(job, 1, **fields)])
    assert (plan.status.attempt, plan.status.stalled_attempts) == (2, 1)
    assert [type(a) for a in plan.actions] == acts


def test_deleted_pod_is_created_again_in_the_same_attempt() -> None:
    status = {"stalled_attempts": 1, "last_failure": last_failure(1, pod="digits-1")}
    job = active_job(attempt=2, formed=False, status=status, **SAVES)
    plan = plan_for(job, [pod(job, 0)])
    assert plan.status.attempt == 2
    assert [a.manifest["metadata"]["name"] for a in only(plan.actions, CreatePod)] == ["digits-1"]


# --- Strikes ------------------------------------------------------------------------------------


def test_each_node_with_a_primary_fault_of_a_stalled_attempt_gets_a_strike() -> None:
    job = active_job(nodes=4, status={"strikes": [strike("machine-1", 1, -60)]}, **SAVES)
    statuses = {
        0: failed_status(0, secondary=True),
        1: failed_status(1),
        2: failed_status(2),
        3: agent_status(3, phase="Preempted"),
    }
    plan = plan_for(job, all_pods(job), statuses=statuses)
    assert plan.status.strikes == [strike("machine-1", 2), strike("machine-2", 1)]


NO_STRIKE: dict[str, tuple[dict[str, Any], dict[str, Any], dict[int, AgentStatus]]] = {
    "attempt saved a step": (SAVES, {"last_checkpoint": saved(5)}, {1: failed_status(1)}),
    "job without a checkpoint": ({}, {}, {1: failed_status(1)}),
    "stopped on request": (SAVES, {}, {1: agent_status(1, phase="Preempted")}),
    "root cause unknown": (SAVES, {}, {1: failed_status(1, secondary=True, at=0.0)}),
}


@pytest.mark.parametrize(("spec", "status", "statuses"), NO_STRIKE.values(), ids=NO_STRIKE.keys())
def test_fault_without_a_stall_adds_no_strike(
    spec: dict[str, Any], status: dict[str, Any], statuses: dict[int, AgentStatus]
) -> None:
    job = active_job(status=status, **spec)
    plan = plan_for(job, all_pods(job), statuses=statuses)
    assert plan.status.attempt == 2
    assert plan.status.strikes == []


def test_status_keeps_the_strikes_of_32_nodes() -> None:
    known = [strike(f"old-{i:02}", 1, -60) for i in range(32)]
    job = active_job(status={"strikes": known}, **SAVES)
    plan = plan_for(job, all_pods(job), statuses={1: failed_status(1)})
    assert plan.status.strikes == [*known[1:], strike("machine-1", 1)]


def test_pods_created_after_the_second_strike_avoid_its_node() -> None:
    """The same plan adds the strike to the status and builds the pods from this status."""
    status = {"stalled_attempts": 1, "strikes": [strike("machine-1", 1, -60)]}
    job = active_job(status=status, **SAVES)
    dead = pod(job, 1, phase="Failed", ready=False, termination=ended(1))
    plan = plan_for(job, [pod(job, 0), dead], statuses={0: agent_status(0)})
    (created,) = only(plan.actions, CreatePod)
    assert avoided(created.manifest) == ["machine-1"]


def avoided(manifest: dict[str, Any]) -> list[str]:
    affinity = manifest["spec"].get("affinity", {}).get("nodeAffinity", {})
    (preferred,) = affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or [None]
    fields = preferred["preference"]["matchFields"] if preferred else []
    return [value for field in fields for value in field["values"]]


def test_strikes_against_a_kubernetes_node_expire() -> None:
    """The Kubernetes node may have been repaired."""
    lifetime = STRIKE_LIFETIME.total_seconds()
    old = [strike("machine-1", 3, -lifetime), strike("machine-2", 3, 1 - lifetime)]
    job = active_job(status={"stalled_attempts": 1, "strikes": old}, **SAVES)
    dead = pod(job, 1, phase="Failed", ready=False, termination=ended(1))
    plan = plan_for(job, [pod(job, 0), dead], statuses={0: agent_status(0)})
    assert plan.status.strikes == [old[1], strike("machine-1", 1)]
    (created,) = only(plan.actions, CreatePod)
    assert avoided(created.manifest) == ["machine-2"]


def test_checkpoint_committed_just_before_the_end_counts_as_progress() -> None:
    """While the attempt trains, the status may lag behind by up to 5 s."""
    shown = ProgressStatus(step=1, time=NOW)
    job = active_job(
        status={"attempt_start_step": 20, "last_checkpoint": saved(20), "progress": shown},
        **SAVES,
    )
    statuses = {0: saving(1, 40), 1: failed_status(1)}
    plan = plan_for(job, all_pods(job), now=after(1), statuses=statuses)
    assert plan.status.attempt == 2
    assert plan.status.stalled_attempts == 0
    assert plan.status.last_checkpoint is not None
    assert plan.status.last_checkpoint.step == 40
