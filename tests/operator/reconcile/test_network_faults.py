"""Attempts that end because a node cannot reach node 0: cause, budget and limit."""

from typing import Any

import pytest

from ddp_operator.api.status import Cause, CheckpointStatus
from tests.operator.support import (
    NOW,
    active_job,
    all_pods,
    failed_status,
    plan_for,
    summary,
)

MESSAGE = "cannot reach digits-0.digits on port 8471: timed out, for 600 s"
SAVES: dict[str, Any] = {"checkpoint": {"claimName": "shared"}, "maxRestarts": 0}
SAVED = CheckpointStatus(step=40, path="/checkpoints/digits/step-40", time=NOW)


def failed(attempt: int = 1, *, network: bool | None = True) -> Any:
    return failed_status(
        1, attempt=attempt, rank=None, exit_code=None, message=MESSAGE, network=network
    )


@pytest.mark.parametrize("network", [True, None])
def test_unreachable_node_0_is_an_infrastructure_failure(*, network: bool | None) -> None:
    """An older agent does not report that the network is the reason."""
    job = active_job(formed=False, **SAVES | {"maxRestarts": 1})
    status = plan_for(job, all_pods(job), statuses={1: failed(network=network)}).status
    assert (status.restarts, status.infrastructure_restarts) == ((0, 1) if network else (1, 0))
    failure = status.last_failure
    assert failure is not None
    expected = (Cause.INFRASTRUCTURE, "NetworkFailed")
    assert (failure.cause, failure.reason) == (
        expected if network else (Cause.APPLICATION, "RankFailed")
    )
    assert (failure.pod, failure.message) == ("digits-1", f"digits-1 failed: {MESSAGE}")


def test_network_fault_after_the_job_trained_is_limited_only_by_its_budget() -> None:
    stalled = {"stalled_attempts": 2, "last_checkpoint": SAVED, "attempt_start_step": 40}
    job = active_job(attempt=3, formed=False, status=stalled, **SAVES)
    status = plan_for(job, all_pods(job), statuses={1: failed(3)}).status
    assert (status.attempt, status.stalled_attempts) == (4, 2)
    assert [strike.node for strike in status.strikes or ()] == ["machine-1"]


def test_pods_that_could_never_reach_each_other_fail_the_job() -> None:
    """A wrong NetworkPolicy does not recover by itself, and the job would hold GPUs for hours."""
    job = active_job(attempt=3, formed=False, status={"stalled_attempts": 2}, **SAVES)
    status = plan_for(job, all_pods(job), statuses={1: failed(3)}).status
    assert summary(status)[1] == "Failed"
    assert "3 attempts in a row saved no new step" in summary(status)[2]
