"""Decisions about jobs under Kueue."""

import itertools
from dataclasses import replace
from typing import Any

import pytest

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import ConditionType
from ddp_operator.builders.gangs.versions import Gangs
from ddp_operator.cluster.kube.used_fields import keep_used_fields
from ddp_operator.reconcile.children import fresh_pods
from ddp_operator.reconcile.decide import decide
from ddp_operator.reconcile.plan import CreatePod, DeletePod, EndGroup, EnsureChild, Plan
from ddp_operator.reconcile.pod_view import PodView, view_pod
from tests.operator.builders.test_kueue import OFFERED
from tests.operator.support import (
    active_job,
    after,
    agent_status,
    ended,
    failed_status,
    new_job,
    only,
    pod,
    reason,
    summary,
    with_status,
    world,
)

GANG = {"type": "Kueue", "queue": "research"}
GROUP = "digits-1-6f1c4"
MANAGED = "kueue.x-k8s.io/managed"
GATED = "SchedulingGated: Scheduling is blocked due to non-empty scheduling gates"


def kueue_job(*, formed: bool = True, attempt: int = 1, **spec: Any) -> DDPJob:
    job = active_job(formed=formed, attempt=attempt, gang=GANG, **spec)
    return with_status(job, pods=fresh_pods(with_status(job, attempt=0), OFFERED))


def member(job: DDPJob, index: int, **fields: Any) -> PodView:
    """Return a pod of the job's group that Kueue holds."""
    given = {"gang_group": GROUP, "queue_group": GROUP, "finalizers": (MANAGED,)}
    return pod(job, index, **(given | fields))


def members(job: DDPJob, **fields: Any) -> list[PodView]:
    return [member(job, index, **fields) for index in range(job.spec.nodes)]


def plan_of(job: DDPJob, pods: list[PodView], **more: Any) -> Plan:
    return decide(world(job, pods, **more), OFFERED)


def ends(plan: Plan) -> list[str]:
    return [action.name for action in only(plan.actions, EndGroup)]


def deleted(plan: Plan) -> list[str]:
    return [action.name for action in only(plan.actions, DeletePod)]


def test_operator_creates_no_group_object() -> None:
    plan = plan_of(new_job(nodes=2, gang=GANG), [])
    assert len(only(plan.actions, CreatePod)) == 2
    assert only(plan.actions, EnsureChild) == []
    assert plan.status.pods is not None
    assert plan.status.pods.gang is not None
    assert plan.status.pods.gang.group == GROUP


def test_job_without_a_queue_is_invalid() -> None:
    nameless = replace(OFFERED, gangs=replace(OFFERED.gangs, queue=None))
    job = new_job(gang={"type": "Kueue"})
    plan = decide(world(job), nameless)
    assert plan.actions == ()
    assert summary(plan.status)[1:] == (
        "Invalid",
        "spec.gang.queue: must be set with Kueue, because gangs.queue of the chart is empty",
    )
    assert reason(decide(world(job), OFFERED).status) == "Pending"


def test_job_in_a_cluster_without_kueue_is_invalid() -> None:
    gangs = Gangs(types=OFFERED.gangs.types)
    plan = decide(world(new_job(gang=GANG)), replace(OFFERED, gangs=gangs))
    assert "Kueue is not installed, or older" in summary(plan.status)[2]


def test_suspension_marks_the_group_before_it_deletes_a_pod() -> None:
    job = kueue_job(suspend=True)
    first = plan_of(job, members(job))
    assert (ends(first), deleted(first)) == (["digits-0"], [])
    marked = [member(job, 0, group_ends=True), member(job, 1)]
    second = plan_of(job, marked)
    assert (ends(second), deleted(second)) == ([], ["digits-0", "digits-1"])
    leaving = {"deleting": True, "phase": "Failed", "ended": True}
    third = plan_of(job, [member(job, index, **leaving) for index in range(2)])
    assert (ends(third), deleted(third)) == (["digits-0"], [])


def test_changed_spec_marks_only_the_former_group() -> None:
    old = kueue_job()
    job = old.model_copy(update={"spec": kueue_job(nodes=3).spec})
    plan = plan_of(job, members(old))
    assert (ends(plan), deleted(plan)) == (["digits-0"], [])
    assert [c.name for c in only(plan.actions, CreatePod)] == ["digits-2"]


def test_finished_group_needs_no_mark() -> None:
    job = kueue_job(suspend=True)
    plan = plan_of(job, members(job, phase="Succeeded"))
    assert ends(plan) == []


def test_gated_gang_is_held_and_gated_extras_are_not() -> None:
    elastic: dict[str, Any] = {"nodes": 3, "elastic": {"minNodes": 2}}
    gated = {"phase": "Pending", "ready": False, "node": None, "waiting": GATED}
    job = kueue_job(formed=False, startupDeadlineSeconds=60, **elastic)
    plan = plan_of(job, [member(job, 0, **gated), member(job, 1, **gated)], now=after(5))
    assert plan.status.queue is not None
    assert plan.status.queue.since == after(5)
    started = [member(job, 0, ready=False), member(job, 1, ready=False), pod(job, 2, **gated)]
    assert plan_of(job, started, now=after(5)).status.queue is None


def test_eviction_delays_no_attempt() -> None:
    """The queue decides when the pods run again. A job that it evicts often has no fault."""
    job = with_status(kueue_job(attempt=9), attempts_without_progress=7)
    leaving = {
        "deleting": True,
        "disruption": "TerminationTarget",
        "disruption_message": "Preempted",
    }
    plan = plan_of(job, members(job, **leaving))
    assert plan.status.attempts_without_progress == 7
    assert plan.status.free_restarts == 1
    assert plan.status.last_failure is not None
    assert plan.status.last_failure.message == "digits-0 was stopped by its queue: Preempted"


def test_pod_that_kueue_does_not_manage_is_named_once() -> None:
    job = kueue_job()
    pods = [member(job, 0), member(job, 1, finalizers=())]
    plan = plan_of(job, pods)
    found = plan.status.condition(ConditionType.GANG_SCHEDULED)
    assert found is not None
    assert found.reason == "NotManaged"
    assert found.message == (
        "digits-1 is placed for itself, because Kueue does not manage it: its pod integration is"
        " off, or not for this namespace"
    )
    ignored = [event.message for event in plan.events if event.reason == "GangIgnored"]
    assert ignored == [found.message]


def test_successor_of_a_pod_that_succeeded_needs_a_new_group() -> None:
    """Kueue counts the pod as done, has given its quota back and admits no successor."""
    job = kueue_job(attempt=2, formed=False)
    earlier = {"attempt": "1", "phase": "Succeeded", "ended": True, "termination": ended(0)}
    plan = plan_of(job, [member(job, 0, ready=False), member(job, 1, **earlier)])
    assert plan.status.attempt == 3
    assert plan.status.attempts[-1].reason == "GangReplaced"
    assert plan.status.free_restarts == 1


def test_name_of_the_pod_of_node_0_is_in_the_status_if_it_is_unusual() -> None:
    job = kueue_job()
    assert plan_of(job, members(job)).status.first_pod is None
    later = [member(job, 0, name="digits-0-g3"), member(job, 1)]
    assert plan_of(job, later).status.first_pod == "digits-0-g3"


def test_marks_of_kueue_are_kept_and_seen() -> None:
    metadata = {
        "name": "digits-1",
        "uid": "u",
        "resourceVersion": "1",
        "labels": {"kueue.x-k8s.io/pod-group-name": GROUP, "kueue.x-k8s.io/queue-name": "q"},
        "annotations": {
            "ddp-trainer.dev/gang-group": GROUP,
            "kueue.x-k8s.io/retriable-in-group": "false",
            "a": "b",
        },
    }
    manifest = {"metadata": metadata, "spec": {"containers": []}, "status": {}}
    kept = keep_used_fields("Pod", manifest)
    view = view_pod(kept)
    assert (view.queue_group, view.group_ends) == (GROUP, True)
    assert "a" not in kept["metadata"]["annotations"]
    own = {**metadata, "annotations": {}}
    assert view_pod({**manifest, "metadata": own}).queue_group == "", "a group of the podTemplate"


def test_restart_in_place_writes_nothing_about_the_group() -> None:
    job = kueue_job()
    assert plan_of(job, members(job)).actions == ()


FINALS = {
    "no status": None,
    "failed": failed_status(1, attempt=13),
    "failed before": failed_status(1, attempt=12),
    "stopped": agent_status(1, attempt=13, phase="Preempted"),
    "stopped before": agent_status(1, attempt=12, phase="Preempted"),
}


@pytest.mark.parametrize("final", FINALS)
@pytest.mark.parametrize("deleting", [True, False])
@pytest.mark.parametrize("formed", [True, False])
def test_held_pod_that_ended_is_replaced_at_once(formed: bool, deleting: bool, final: str) -> None:
    """Kueue keeps it until its successor exists, so nobody may wait until it is gone.

    An operator that has just started first sees all deletions at this moment.
    """
    job = kueue_job(formed=formed, attempt=13, nodes=3)
    others = [member(job, index, ready=formed) for index in (0, 2)]
    choices = itertools.product(("13", "12"), ("13", "12", ""), (None, "TerminationTarget"))
    for ordered, first, disruption in choices:
        end = ended(143, final=FINALS[final])
        changes = {"attempt": ordered, "first_attempt": first, "disruption": disruption}
        old = member(job, 1, phase="Failed", ended=True, ready=False, termination=end, **changes)
        pods = [others[0], replace(old, deleting=deleting), others[1]]
        plan = plan_of(job, pods, deleting=0.0)
        is_replaced = [one.index for one in only(plan.actions, CreatePod)] == [1]
        assert is_replaced or plan.status.attempt == 14, changes
