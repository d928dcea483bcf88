"""Tests of when the operator replaces pods on unreachable Kubernetes nodes."""

from datetime import timedelta
from typing import Any

import pytest

from ddp_operator.reconcile.abandoned import OVERDUE_GRACE, UNREACHABLE_GRACE, UNREACHABLE_REASON
from ddp_operator.reconcile.plan import CreatePod, DeletePod, Plan
from tests.operator.support import active_job, agent_status, only, plan_for, pod

GRACE = 60


def plan_while_deleting(seconds: float | None, *, answers: bool = False, **fields: Any) -> Plan:
    """Return the plan for attempt 2, for which digits-1 has been deleted for some seconds."""
    job = active_job(attempt=2, formed=False)
    given = {
        "deleting": True,
        "grace": timedelta(seconds=GRACE),
        "disruption": UNREACHABLE_REASON,
    }
    pods = (pod(job, 0), pod(job, 1, **(given | fields)))
    statuses = {0: agent_status(0, attempt=2)} | (
        {1: agent_status(1, attempt=1)} if answers else {}
    )
    silent = () if answers else (1,)
    return plan_for(job, pods, statuses=statuses, silent=silent, deleting=seconds)


def is_abandoned(plan: Plan) -> bool:
    deleted = only(plan.actions, DeletePod)
    created = [a.manifest["metadata"]["name"] for a in only(plan.actions, CreatePod)]
    assert len(deleted) == len(created)
    assert all((d.name, d.grace_seconds) == ("digits-1", 0) for d in deleted)
    return bool(deleted)


SOON = UNREACHABLE_GRACE.total_seconds()
LATE = GRACE + OVERDUE_GRACE.total_seconds() + 1


@pytest.mark.parametrize(
    ("seconds", "fields", "expected"),
    [
        (SOON / 2, {}, False),
        (SOON, {}, True),
        (SOON, {"answers": True}, False),
        (LATE, {"answers": True}, True),
        (SOON, {"disruption": None}, False),
        (SOON, {"disruption": "EvictionByEvictionAPI"}, False),
        (LATE, {"disruption": None}, True),
        (GRACE, {"disruption": None}, False),
    ],
)
def test_pod_is_abandoned_when_no_kubelet_can_report_its_end(
    seconds: float, fields: dict[str, Any], expected: bool
) -> None:
    assert is_abandoned(plan_while_deleting(seconds, **fields)) is expected


def test_pod_whose_deletion_the_operator_has_just_seen_is_not_abandoned() -> None:
    """The API server's clock sets the times in the pod, so the operator does not compare them."""
    assert not is_abandoned(plan_while_deleting(None))
