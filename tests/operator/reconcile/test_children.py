"""When the operator replaces pods on Kubernetes nodes that are unreachable."""

from datetime import datetime
from typing import Any

import pytest

from ddp_operator.reconcile.abandoned import OVERDUE_GRACE, UNREACHABLE_GRACE, UNREACHABLE_REASON
from ddp_operator.reconcile.plan import CreatePod, DeletePod, Plan
from tests.operator.support import active_job, after, agent_status, only, plan_for, pod

GRACE = 60


def plan_while_deleting(now: datetime, *, answers: bool = False, **fields: Any) -> Plan:
    """Return the plan for attempt 2, whose digits-1 was deleted at NOW."""
    job = active_job(attempt=2, formed=False)
    given = {
        "deleting": True,
        "deletion_requested": after(0),
        "deletion_deadline": after(GRACE),
        "disruption": UNREACHABLE_REASON,
    }
    pods = (pod(job, 0), pod(job, 1, **(given | fields)))
    statuses = {0: agent_status(0, attempt=2)} | (
        {1: agent_status(1, attempt=1)} if answers else {}
    )
    return plan_for(job, pods, now=now, statuses=statuses, silent=() if answers else (1,))


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
    assert is_abandoned(plan_while_deleting(after(seconds), **fields)) is expected


def test_pod_without_deletion_times_is_not_abandoned() -> None:
    assert not is_abandoned(
        plan_while_deleting(after(LATE), deletion_requested=None, deletion_deadline=None)
    )
