"""Attempts that end because the volume fails: their cause, their budget and their limit."""

from typing import Any

import pytest

from ddp_operator.api.status import Cause
from ddp_operator.reconcile.plan import DeletePod
from ddp_wire.contract import ExitCode
from tests.operator.support import (
    active_job,
    all_pods,
    ended,
    failed_status,
    only,
    plan_for,
    pod,
    summary,
    with_status,
)

MESSAGE = "checkpoint: cannot use /checkpoints/a: [Errno 28] No space left on device"
SAVES: dict[str, Any] = {"checkpoint": {"claimName": "shared"}, "maxRestarts": 0}


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("agent report", f"rank 0 on digits-0 failed: {MESSAGE}"),
        ("exit code", "digits-0 ended with exit code 74"),
    ],
)
def test_failed_volume_is_an_infrastructure_failure(how: str, message: str) -> None:
    job = active_job(**SAVES)
    code = ExitCode.VOLUME_FAILED
    seen, statuses = pod(job, 0), {0: failed_status(0, rank=0, exit_code=code, message=MESSAGE)}
    if how == "exit code":
        seen, statuses = pod(job, 0, phase="Failed", termination=ended(code)), {}
    status = plan_for(job, [seen, pod(job, 1)], statuses=statuses).status
    assert (status.attempt, status.restarts, status.infrastructure_restarts) == (2, 0, 1)
    failure = status.last_failure
    assert failure is not None
    assert (failure.cause, failure.reason) == (Cause.INFRASTRUCTURE, "VolumeFailed")
    assert (failure.exit_code, failure.message) == (74, message)


def test_failed_volume_is_limited_only_by_its_budget() -> None:
    """The operator replaces the pods each time, because a new mount may help."""
    limit: dict[str, Any] = {"maxInfrastructureRestarts": 3}
    job = active_job(attempt=3, status={"stalled_attempts": 2}, **SAVES, **limit)
    failed = failed_status(0, attempt=3, exit_code=ExitCode.VOLUME_FAILED, message=MESSAGE)
    plan = plan_for(job, all_pods(job), statuses={0: failed})
    assert (plan.status.attempt, plan.status.stalled_attempts) == (4, 2)
    assert [action.name for action in only(plan.actions, DeletePod)] == ["digits-0", "digits-1"]
    spent = with_status(job, **dict(job.status) | {"infrastructure_restarts": 3})
    plan = plan_for(spent, all_pods(spent), statuses={0: failed})
    assert summary(plan.status)[1] == "Failed"
    assert "maxInfrastructureRestarts is 3" in summary(plan.status)[2]
