"""Pods that a finalizer of another controller keeps after their deletion."""

from datetime import timedelta
from typing import Any

import pytest

from ddp_operator.cluster.kube.used_fields import keep_used_fields
from ddp_operator.reconcile.plan import CreatePod, DeletePod, Plan
from ddp_operator.reconcile.pod_view import view_pod
from tests.operator.support import (
    active_job,
    after,
    ended,
    failed_status,
    only,
    plan_for,
    pod,
    summary,
    with_status,
)

KUEUE = "kueue.x-k8s.io/managed"
SENTENCE = f"the deleted pod digits-1 keeps its name until its finalizers are removed: {KUEUE}"


def plan_with(old: dict[str, Any], seconds: float, **status: Any) -> Plan:
    """Return the plan of attempt 2 some seconds after the grace period of digits-1."""
    job = with_status(active_job(attempt=2, formed=False), **status)
    given = {"ready": False, "attempt": "1", "finalizers": (KUEUE,)}
    kept = pod(job, 1, **given | old)
    deleting = seconds + kept.grace.total_seconds()
    return plan_for(job, [pod(job, 0, ready=False), kept], now=after(seconds), deleting=deleting)


def counts(plan: Plan) -> tuple[int, int]:
    return len(only(plan.actions, DeletePod)), len(only(plan.actions, CreatePod))


ENDED = {"phase": "Failed", "termination": ended(1, final=failed_status(1))}
DELETED = {"deleting": True}
GRACE = {"deleting": True, "grace": timedelta(seconds=60)}


@pytest.mark.parametrize(
    ("old", "expected"),
    [
        (ENDED, (1, 0)),
        (ENDED | DELETED, (0, 0)),
        (ENDED | GRACE, (0, 0)),
        (ENDED | {"finalizers": ()}, (1, 1)),
        (ENDED | GRACE | {"finalizers": ()}, (1, 1)),
        # No kubelet reports the end of this one. The first deletion by force ends its grace period.
        ({"phase": "Running"} | GRACE, (1, 0)),
        ({"phase": "Running"} | DELETED, (0, 0)),
        ({"phase": "Running", "finalizers": ()} | GRACE, (1, 1)),
    ],
    ids=str,
)
def test_pod_with_a_finalizer_is_deleted_once_and_waited_for(
    old: dict[str, Any], expected: tuple[int, int]
) -> None:
    """The operator must not delete and create the pod again every second."""
    for seconds in (16, 17, 300):
        assert counts(plan_with(old, seconds)) == expected


def test_status_and_one_event_name_the_finalizer() -> None:
    soon = plan_with(ENDED | DELETED, 9)
    assert KUEUE not in summary(soon.status)[2]
    late = plan_with(ENDED | DELETED, 10)
    assert summary(late.status)[1:] == ("Pending", SENTENCE)
    assert [(e.type, e.reason, e.message) for e in late.events if e.reason == "PodHeld"] == [
        ("Warning", "PodHeld", SENTENCE)
    ]
    later = plan_with(ENDED | DELETED, 11, conditions=late.status.conditions)
    assert "PodHeld" not in [event.reason for event in later.events]


def test_finalizers_of_a_pod_are_in_the_pod_view() -> None:
    metadata = {"name": "digits-1", "uid": "u", "resourceVersion": "1", "finalizers": [KUEUE]}
    manifest = {"metadata": metadata, "spec": {"containers": []}, "status": {}}
    assert view_pod(keep_used_fields("Pod", manifest)).finalizers == (KUEUE,)
