"""Attempts that end because the weights of the ranks differ: cause, strike and remedy."""

from typing import Any

import pytest

from ddp_operator.api.status import Cause, CheckpointStatus, StrikeStatus
from ddp_operator.reconcile.plan import CreatePod, DeletePod
from ddp_wire.contract import ExitCode
from ddp_wire.messages import AgentStatus
from ddp_wire.replica_errors import NO_MAJORITY, PREFIX
from tests.operator.support import (
    NOW,
    active_job,
    after,
    all_pods,
    ended,
    failed_status,
    only,
    plan_for,
    pod,
    summary,
)

SAVES: dict[str, Any] = {"nodes": 3, "checkpoint": {"claimName": "shared"}, "maxRestarts": 0}
BLAMED = f"{PREFIX}the weights of rank 1 differ from those of the other 2 ranks"
UNCLEAR = f"{PREFIX}the weights of ranks 0, 1, 2 differ in 1 of 8 tensors; {NO_MAJORITY}"
PROGRESS = {
    "attempt_start_step": 10,
    "last_checkpoint": CheckpointStatus(step=30, path="/c", time=after(-5)),
}


def majority(code: ExitCode) -> dict[int, AgentStatus]:
    """Return the reports of ranks 0 and 2, which agree, and of rank 1, which differs."""
    rest = {
        index: failed_status(index, at=NOW.timestamp() - 2, exit_code=code, secondary=True)
        for index in (0, 2)
    }
    return rest | {1: failed_status(1, exit_code=code, message=BLAMED)}


def test_corrupted_rank_is_named_and_its_node_gets_a_strike_and_its_pod_is_recreated() -> None:
    job = active_job(status=PROGRESS, **SAVES)
    plan = plan_for(job, all_pods(job), statuses=majority(ExitCode.CORRUPTED))
    status, failure = plan.status, plan.status.last_failure
    assert (status.attempt, status.restarts, status.infrastructure_restarts) == (2, 0, 1)
    assert failure is not None
    assert (failure.cause, failure.reason) == (Cause.INFRASTRUCTURE, "SilentCorruption")
    assert (failure.rank, failure.pod, failure.node) == (1, "digits-1", "machine-1")
    assert failure.message == f"rank 1 on digits-1 failed: {BLAMED}"
    assert [(one.node, one.count) for one in status.strikes] == [("machine-1", 1)]
    assert status.stalled_attempts == 0
    assert [action.name for action in only(plan.actions, DeletePod)] == ["digits-1"]


def test_second_strike_keeps_new_pods_from_the_node() -> None:
    strikes = [StrikeStatus(node="machine-1", count=1, last_time=after(-60))]
    job = active_job(status={**PROGRESS, "strikes": strikes}, **SAVES)
    plan = plan_for(job, all_pods(job), statuses=majority(ExitCode.CORRUPTED))
    assert [(one.node, one.count) for one in plan.status.strikes] == [("machine-1", 2)]
    again = active_job(attempt=2, status=dict(plan.status), **SAVES)
    pods = [pod(again, 0), pod(again, 2)]
    (created,) = only(plan_for(again, pods).actions, CreatePod)
    assert "machine-1" in str(created.manifest["spec"]["affinity"])


@pytest.mark.parametrize("stalled", [False, True])
def test_no_rank_is_blamed_without_a_majority(stalled: bool) -> None:
    progress = PROGRESS | ({"attempt_start_step": 30} if stalled else {})
    job = active_job(status=progress, **SAVES | {"maxRestarts": 3})
    statuses = {0: failed_status(0, exit_code=ExitCode.REPLICAS_DIFFER, message=UNCLEAR)}
    plan = plan_for(job, all_pods(job), statuses=statuses)
    failure = plan.status.last_failure
    assert failure is not None
    assert (failure.cause, failure.reason) == (Cause.APPLICATION, "ReplicasDiffer")
    assert (failure.rank, failure.pod, failure.node) == (None, None, None)
    assert failure.message == UNCLEAR
    assert plan.status.strikes == []
    assert only(plan.actions, DeletePod) == []


def test_job_fails_at_once_with_policy_stop() -> None:
    job = active_job(status=PROGRESS, **SAVES | {"maxRestarts": 3})
    plan = plan_for(job, all_pods(job), statuses=majority(ExitCode.CORRUPTION_STOP))
    failure = plan.status.last_failure
    assert failure is not None
    assert (failure.reason, failure.rank, failure.node) == ("ReplicasDiffer", 1, "machine-1")
    assert (plan.status.attempt, summary(plan.status)[1]) == (1, "Failed")


def test_corruption_is_known_by_the_exit_code_of_a_container_alone() -> None:
    job = active_job(status=PROGRESS, **SAVES)
    dead = pod(job, 1, phase="Failed", termination=ended(ExitCode.CORRUPTED))
    status = plan_for(job, [pod(job, 0), dead, pod(job, 2)]).status
    assert status.last_failure is not None
    assert (status.last_failure.reason, status.infrastructure_restarts) == ("SilentCorruption", 1)
    assert [one.node for one in status.strikes] == ["machine-1"]
