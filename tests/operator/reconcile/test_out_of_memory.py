"""Tests of the message about a job that ran out of memory: the limit and its origin."""

from typing import Any

import pytest

from ddp_operator.api.status import Cause
from tests.operator.support import active_job, all_pods, failed_status, plan_for

LIMITED = "digits-1 ran out of memory: a limit of 160 MiB"


@pytest.mark.parametrize(
    ("spec", "message", "expected"),
    [
        ({}, "", "digits-1 exceeded the memory limit of its pod"),
        (
            {},
            "a limit of 160 MiB",
            f"{LIMITED}; spec.resources sets none, so it may be a LimitRange's",
        ),
        (
            {"resources": {"limits": {"memory": "160Mi"}}},
            "a limit of 160 MiB",
            LIMITED,
        ),
    ],
    ids=["older agent", "limit of the namespace", "limit of the job"],
)
def test_status_states_the_memory_limit_and_its_origin(
    spec: dict[str, Any], message: str, expected: str
) -> None:
    job = active_job(**spec)
    killed = failed_status(1, rank=None, signal="SIGKILL", out_of_memory=True, message=message)
    found = plan_for(job, all_pods(job), statuses={1: killed}).status.last_failure
    assert found is not None
    assert (found.reason, found.cause) == ("OOMKilled", Cause.APPLICATION)
    assert found.message == expected
