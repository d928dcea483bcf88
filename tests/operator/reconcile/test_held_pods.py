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
SENTENCE = (
    f"the deleted pod digits-1 has no successor until its finalizers are removed: {KUEUE}, because"
    " the kubelet has not reported its end"
)


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
"""The worker has ended, and the kubelet has not yet reported the end of the whole pod."""
OVER = ENDED | {"ended": True}
DELETED = {"deleting": True}
GRACE = {"deleting": True, "grace": timedelta(seconds=60)}


@pytest.mark.parametrize(
    ("old", "expected"),
    [
        (ENDED, (1, 0)),
        (ENDED | DELETED, (0, 0)),
        (ENDED | GRACE, (0, 0)),
        (OVER, (1, 1)),
        (OVER | DELETED, (0, 1)),
        (OVER | {"finalizers": ()}, (1, 1)),
        # It was deleted before it got a Kubernetes node, so it cannot get one.
        ({"phase": "Pending", "node": None} | DELETED, (0, 1)),
        ({"phase": "Pending", "node": None}, (0, 0)),
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


@pytest.mark.parametrize(
    ("old", "name"),
    [
        (OVER, "digits-1-g2"),
        (OVER | DELETED, "digits-1-g2"),
        (OVER | {"name": "digits-1-g4"}, "digits-1-g5"),
        (OVER | {"finalizers": ()}, "digits-1"),
        (OVER | {"finalizers": (), "name": "digits-1-g4"}, "digits-1"),
    ],
)
def test_successor_of_a_held_pod_has_another_name_and_the_same_host_name(
    old: dict[str, Any], name: str
) -> None:
    [creation] = only(plan_with(old, 1).actions, CreatePod)
    assert creation.name == creation.manifest["metadata"]["name"] == name
    assert creation.manifest["spec"]["hostname"] == "digits-0001"


def test_new_generation_is_the_pod_of_its_node() -> None:
    """A restarted operator finds it, and creates no second one."""
    job = with_status(active_job(attempt=2, formed=False))
    held = pod(job, 1, attempt="1", finalizers=(KUEUE,), **OVER | DELETED)
    for successor in ({"uid": "b"}, {"uid": "b", "finalizers": (KUEUE,)}):
        new = pod(job, 1, name="digits-1-g2", ready=False, **successor)
        for pods in ([held, new], [new, held]):
            plan = plan_for(job, [pod(job, 0, ready=False), *pods])
            assert counts(plan) == (0, 0)


def test_node_has_at_most_four_held_pods() -> None:
    job = with_status(active_job(attempt=2, formed=False))
    given = {"attempt": "1", "finalizers": (KUEUE,)} | OVER | DELETED
    held = [pod(job, 1, name=f"digits-1-g{n}", uid=str(n), **given) for n in range(2, 6)]
    others = [pod(job, 0, ready=False)]
    assert counts(plan_for(job, [*others, *held[:3]])) == (0, 1)
    late = plan_for(job, [*others, *held], deleting=20)
    assert counts(late) == (0, 0)
    assert summary(late.status)[2] == (
        f"the deleted pod digits-1-g5 has no successor until its finalizers are removed: {KUEUE}"
    )


def test_finalizers_of_a_pod_are_in_the_pod_view() -> None:
    metadata = {"name": "digits-1", "uid": "u", "resourceVersion": "1", "finalizers": [KUEUE]}
    manifest = {"metadata": metadata, "spec": {"containers": []}, "status": {}}
    assert view_pod(keep_used_fields("Pod", manifest)).finalizers == (KUEUE,)
