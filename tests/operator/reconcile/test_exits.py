"""A run whose ranks have done their work succeeds, however they exit."""

from typing import Any

import pytest

from ddp_operator.api.goodput import GoodputStatus
from ddp_operator.api.status import CheckpointStatus, ConditionType
from ddp_operator.reconcile.exits import exit_events
from ddp_operator.reconcile.plan import Plan
from ddp_wire.contract import AgentStatus, ExitProblem, RankPhase
from tests.agent.support import heartbeat
from tests.operator.support import (
    NOW,
    active_job,
    agent_status,
    all_pods,
    ended,
    failed_status,
    plan_for,
    pod,
    reason,
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


def test_case_100_job_is_completed_and_an_event_names_the_ranks() -> None:
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


def test_problem_of_an_earlier_attempt_is_not_reported() -> None:
    job = active_job(attempt=2)
    assert exit_events(world(job, all_pods(job), statuses={0: exited(0, STUCK)})) == ()


@pytest.mark.parametrize(("phase", "exits"), [(RankPhase.DONE, True), (RankPhase.TRAINING, False)])
def test_message_tells_that_the_ranks_exit(phase: RankPhase, exits: bool) -> None:
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
def test_case_105_command_without_a_checkpoint_may_start_from_the_beginning(
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


def done(result: int | None = 0, rank: int = 0) -> AgentStatus:
    return agent_status(0, ranks=[heartbeat(rank=rank, phase=RankPhase.DONE, result=result)])


@pytest.mark.parametrize("seconds", [1, 1000])
@pytest.mark.parametrize("index", [0, 1])
def test_case_195_pod_that_is_deleted_while_finished_ranks_exit_is_not_lost(
    index: int, seconds: int
) -> None:
    job = active_job()
    pods = [pod(job, i, deleting=i == index) for i in range(2)]
    kept = plan_for(job, pods, statuses={0: done()}, deleting=seconds)
    assert (kept.status.attempt, kept.status.succeeded_nodes) == (1, str(index))
    assert not kept.actions
    job = job.model_copy(update={"status": kept.status})
    left = pod(job, 1 - index, phase="Succeeded", termination=ended(0, final=exited(1 - index)))
    completed = plan_for(job, [left])
    assert reason(completed.status) == "Completed"
    assert completed.status.restarts == 0


def test_case_195_pod_that_is_gone_after_the_work_is_done_is_not_lost() -> None:
    job = active_job()
    assert plan_for(job, [pod(job, 0)], statuses={0: done()}).status.succeeded_nodes == "1"


@pytest.mark.parametrize("report", [done(85), done(None), done(0, rank=1)])
def test_case_195_pod_that_is_deleted_before_the_end_of_the_run_is_lost(
    report: AgentStatus,
) -> None:
    job = active_job()
    plan = plan_for(job, [pod(job, 0), pod(job, 1, deleting=True)], statuses={0: report})
    assert plan.status.attempt == 2
