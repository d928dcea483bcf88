"""A run whose ranks have done their work succeeds, however they exit."""

from typing import Any

import pytest

from ddp_operator.api.goodput import GoodputStatus
from ddp_operator.api.status import CheckpointStatus, ConditionType
from ddp_operator.reconcile.exits import exit_events
from ddp_operator.reconcile.plan import Plan, SetAttempt
from ddp_wire.messages import AgentStatus, ExitProblem, RankPhase, Timeline
from tests.agent.support import heartbeat
from tests.operator.support import (
    NOW,
    active_job,
    after,
    agent_status,
    all_pods,
    ended,
    failed_status,
    only,
    plan_for,
    pod,
    reason,
    with_status,
    world,
)


def message(plan: Plan) -> str:
    summary = plan.status.condition(ConditionType.SUCCEEDED)
    assert summary is not None
    return summary.message


SAVED = CheckpointStatus(step=5, path="/c", time=NOW)
STUCK = ExitProblem(rank=1, message="did not exit within 61 s after its work was done: f")
CRASHED = ExitProblem(rank=None, message="failed after its work was done: torchrun")


def exited(index: int, *problems: ExitProblem, attempt: int = 1) -> AgentStatus:
    found = list(problems) or None
    return agent_status(index, attempt=attempt, phase="Succeeded", exit_problems=found)


def test_job_is_completed_and_an_event_names_the_ranks() -> None:
    job = active_job()
    finals = [exited(0), exited(1, STUCK, CRASHED)]
    ends = [
        pod(job, i, phase="Succeeded", termination=ended(0, final=final))
        for i, final in enumerate(finals)
    ]
    done = plan_for(job, ends)
    assert reason(done.status) == "Completed"
    assert message(done) == "all 2 ranks of attempt 1 have done their work"
    assert done.status.restarts == 0
    assert [(event.type, event.reason) for event in done.events] == [
        ("Warning", "ExitFailed"),
        ("Normal", "Completed"),
    ]
    assert done.events[0].message == (
        "rank 1 on digits-1 did not exit within 61 s after its work was done: f; the launcher on"
        " digits-1 failed after its work was done: torchrun (the run has succeeded)"
    )


def test_event_names_a_few_of_many_ranks() -> None:
    job = active_job(nodes=6)
    seen = world(job, all_pods(job), statuses={i: exited(i, STUCK) for i in range(6)})
    (event,) = exit_events(seen)
    assert event.message.endswith("done: f; and 3 more (the run has succeeded)")


def test_exit_problem_of_an_earlier_attempt_is_not_reported() -> None:
    job = active_job(attempt=2)
    assert exit_events(world(job, all_pods(job), statuses={0: exited(0, STUCK)})) == ()


def exiting(index: int, result: int | None = 0, **fields: Any) -> AgentStatus:
    """Return the report of an agent whose rank has done its work and is exiting."""
    done = heartbeat(rank=index, phase=RankPhase.DONE, result=result)
    return agent_status(index, **({"ranks": [done]} | fields))


EXPIRED: dict[str, Any] = {"activeDeadlineSeconds": 3600}


def test_deadline_that_passes_while_the_ranks_exit_completes_the_job() -> None:
    job = active_job(**EXPIRED)
    plan = plan_for(job, all_pods(job), statuses={0: exiting(0)}, now=after(3601))
    assert reason(plan.status) == "Completed"
    assert message(plan) == (
        "all 2 ranks of attempt 1 have done their work; while they exited, the job was active for"
        " longer than activeDeadlineSeconds (3600)"
    )
    done = with_status(job, **dict(plan.status))
    stopped = plan_for(done, all_pods(done))
    assert [action.value for action in only(stopped.actions, SetAttempt)] == ["stop", "stop"]
    assert stopped.status.next_action == "the operator waits for digits-0, digits-1 to end"


def test_suspension_while_the_ranks_exit_completes_the_job() -> None:
    """A resumption would start all pods once more, only to find the run complete."""
    job = active_job(suspend=True)
    plan = plan_for(job, all_pods(job), statuses={0: exiting(0)})
    assert reason(plan.status) == "Completed"
    assert message(plan).endswith("; while they exited, spec.suspend was set")
    ends = [pod(job, i, phase="Succeeded", termination=ended(0, final=exited(i))) for i in range(2)]
    assert reason(plan_for(job, ends).status) == "Completed"


PREEMPTED = agent_status(1, phase="Preempted", ranks=[])
LOST: dict[str, dict[str, Any] | None] = {
    "its pod was deleted": None,
    "its pod is being evicted": {"deleting": True, "disruption": "EvictionByEvictionAPI"},
    "its Kubernetes node is gone": {"phase": "Failed", "disruption": "DeletionByPodGC"},
    "it ran out of memory": {"phase": "Failed", "termination": ended(137, reason="OOMKilled")},
    "it was stopped": {"phase": "Failed", "termination": ended(85, final=PREEMPTED)},
}


@pytest.mark.parametrize("fields", LOST.values(), ids=LOST.keys())
@pytest.mark.parametrize("formed", [True, False])
def test_pod_that_is_lost_while_the_ranks_exit_costs_no_attempt(
    fields: dict[str, Any] | None, formed: bool
) -> None:
    """A peer of the lost pod reports the result, also if the attempt began before this operator."""
    job = active_job(formed=formed)
    timeline = Timeline(ordered=1.0, launched=2.0, joined=3.0)
    others = [] if fields is None else [pod(job, 1, ready=False, **fields)]
    statuses = {0: exiting(0, timeline=timeline)}
    plan = plan_for(job, [pod(job, 0), *others], statuses=statuses)
    assert reason(plan.status) == "Completed"
    assert "have done their work; while they exited, digits-1 " in message(plan)
    assert (plan.status.attempt, plan.status.restarts) == (1, 0)
    assert (plan.status.infrastructure_restarts, plan.status.free_restarts) == (0, 0)


def test_last_report_of_the_lost_pod_itself_proves_that_the_work_is_done() -> None:
    """A termination message contains only one rank of a node."""
    job = active_job(nodes=1, procsPerNode=8)
    stopped = exiting(0, phase="Preempted")
    end = pod(job, phase="Failed", termination=ended(85, final=stopped))
    assert reason(plan_for(job, [end]).status) == "Completed"


STILL_WORKS: dict[str, tuple[AgentStatus, dict[str, Any]]] = {
    "a rank trains": (agent_status(0, ranks=[heartbeat(result=0)]), {}),
    "the ranks stop on request": (exiting(0, 85), {}),
    "an older trainer reports no result": (exiting(0, None), {}),
    "the report is of an earlier attempt": (exiting(0, attempt=1), {"attempt": 2}),
    "the heartbeat is of an earlier attempt": (exiting(0, attempt=2), {"attempt": 2}),
    "a command may go on": (exiting(0), {"command": ["python", "-m", "ddp_trainer"]}),
}


@pytest.mark.parametrize(("report", "spec"), STILL_WORKS.values(), ids=STILL_WORKS.keys())
def test_job_whose_work_may_not_be_done_is_not_completed(
    report: AgentStatus, spec: dict[str, Any]
) -> None:
    job = active_job(**EXPIRED | spec)
    late = plan_for(job, all_pods(job), statuses={0: report}, now=after(3601))
    assert reason(late.status) == "Failed"
    lost = plan_for(job, [pod(job, 0)], statuses={0: report})
    assert lost.status.attempt == job.status.attempt + 1
    job = active_job(suspend=True, **spec)
    assert reason(plan_for(job, all_pods(job), statuses={0: report}).status) == "Suspended"


def test_edit_while_the_ranks_exit_starts_the_new_spec() -> None:
    job = active_job(status={"attempt_spec_hash": "older"})
    assert plan_for(job, all_pods(job), statuses={0: exiting(0)}).status.attempt == 2


@pytest.mark.parametrize(("phase", "exits"), [(RankPhase.DONE, True), (RankPhase.TRAINING, False)])
def test_message_says_that_the_ranks_exit(phase: RankPhase, exits: bool) -> None:
    job = active_job()
    report = agent_status(0, ranks=[heartbeat(phase=phase)])
    running = plan_for(job, all_pods(job), statuses={0: report})
    assert ("have done their work in attempt 1, and exit" in message(running)) == exits


@pytest.mark.parametrize(
    ("spec", "status", "warns"),
    [
        ({"command": ["python", "t.py"]}, {}, True),
        ({"command": ["python", "t.py"]}, {"goodput": GoodputStatus()}, False),
        ({"command": ["python", "t.py"]}, {"last_checkpoint": SAVED}, False),
        ({"task": "t:build"}, {}, False),
    ],
)
def test_command_without_a_checkpoint_may_start_from_the_beginning(
    spec: dict[str, Any], status: dict[str, Any], warns: bool
) -> None:
    trained = {"goodput": GoodputStatus(training_milliseconds=5000)}
    job = active_job(status=trained | status, **spec)
    plan = plan_for(job, all_pods(job), statuses={0: failed_status(0, message="E: no")})
    warning = "the command has reported no checkpoint: it may start from the beginning"
    found = [event.message for event in plan.events if event.reason == "NoCheckpoint"]
    assert found == ([warning] if warns else [])
    again = job.model_copy(update={"status": plan.status})
    reports = {i: agent_status(i, attempt=2) for i in (0, 1)}
    running = plan_for(again, all_pods(again), statuses=reports)
    assert reason(running.status) == "Running"
    assert (warning in message(running)) == warns
