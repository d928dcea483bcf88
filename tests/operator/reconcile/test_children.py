"""Pods on nodes that have stopped talking: when they are given up."""

from datetime import datetime
from typing import Any

import pytest

from ddp_operator.reconcile.children import OVERDUE, SILENCE, UNREACHABLE
from ddp_operator.reconcile.plan import CreatePod, DeletePod, Plan
from tests.operator.support import active_job, after, only, plan_for, pod, word

GRACE = 60


def leaving(now: datetime, *, answers: bool = False, **fields: Any) -> Plan:
    """What is decided about attempt 2, whose digits-1 was told to go at NOW."""
    job = active_job(attempt=2, formed=False)
    given = {
        "deleting": True,
        "deletion_asked": after(0),
        "deletion_due": after(GRACE),
        "disruption": UNREACHABLE,
    }
    pods = (pod(job, 0), pod(job, 1, **(given | fields)))
    words = {0: word(0, attempt=2)} | ({1: word(1, attempt=1)} if answers else {})
    return plan_for(job, pods, now=now, words=words)


def given_up(plan: Plan) -> bool:
    deleted = only(plan.actions, DeletePod)
    created = [a.manifest["metadata"]["name"] for a in only(plan.actions, CreatePod)]
    assert len(deleted) == len(created)
    assert all((d.name, d.grace_seconds) == ("digits-1", 0) for d in deleted)
    return bool(deleted)


SOON = SILENCE.total_seconds()
LATE = GRACE + OVERDUE.total_seconds() + 1


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
def test_a_pod_is_given_up_when_nobody_will_say_that_it_has_ended(
    seconds: float, fields: dict[str, Any], expected: bool
) -> None:
    assert given_up(leaving(after(seconds), **fields)) is expected


def test_a_pod_whose_deletion_has_no_time_is_waited_for() -> None:
    assert not given_up(leaving(after(LATE), deletion_asked=None, deletion_due=None))
