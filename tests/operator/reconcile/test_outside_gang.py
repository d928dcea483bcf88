"""Pods outside a gang: spares, and the nodes of an elastic job beyond its smallest size."""

from typing import Any

import pytest

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import ConditionType
from ddp_operator.reconcile.plan import CreatePod, DeletePod, Plan
from ddp_operator.reconcile.pod_view import PodView
from tests.operator.elastic_support import members, starting, training, waiting
from tests.operator.reconcile.test_gangs import gang_condition, gang_job, group, member, plan_of
from tests.operator.support import after, condition, new_job, only, pod, summary, with_status

ELASTIC: dict[str, Any] = {"nodes": 4, "elastic": {"minNodes": 2, "startWaitSeconds": 30}}
UNPLACED: dict[str, Any] = {"phase": "Pending", "ready": False, "node": None, "ip": None}


def seen(job: DDPJob, *pods: PodView, **more: Any) -> Plan:
    return plan_of(job, *pods, groups=[group(job)], **more)


def names_of(plan: Plan, kind: type[Any]) -> list[str]:
    return sorted(action.name for action in only(plan.actions, kind))


def placed_since(job: DDPJob, seconds: float) -> DDPJob:
    """Return the job whose gang has had its Kubernetes nodes since a time."""
    kind = ConditionType.GANG_SCHEDULED
    since = {"last_transition_time": after(seconds)}
    placed = condition(kind, "True", "Placed").model_copy(update=since)
    others = [c for c in job.status.conditions if c.type is not kind]
    return with_status(job, conditions=[*others, placed])


@pytest.mark.parametrize("spec", [ELASTIC, {"nodes": 2, "spares": 2}])
def test_gang_gets_its_pods_first(spec: dict[str, Any]) -> None:
    plan = seen(new_job(gang={"type": "Volcano"}, **spec))
    assert names_of(plan, CreatePod) == ["digits-0", "digits-1"]
    job = gang_job(**spec)
    waiting_plan = seen(job, member(job, 0), member(job, 1, **UNPLACED))
    assert names_of(waiting_plan, CreatePod) == []
    placed = seen(job, member(job, 0, ready=False), member(job, 1, ready=False))
    assert names_of(placed, CreatePod) == ["digits-2", "digits-3"]


def test_message_is_about_the_gang_alone() -> None:
    job = gang_job(**ELASTIC)
    plan = seen(job, member(job, 0, **UNPLACED), member(job, 1, **UNPLACED))
    message = "0 of 2 pods of the Volcano group digits-1 have a Kubernetes node"
    assert summary(plan.status)[1:] == ("Pending", message)
    placed = seen(job, member(job, 0), member(job, 1), pod(job, 2, **UNPLACED))
    assert gang_condition(placed.status)[:2] == ("True", "Placed")
    assert gang_condition(placed.status)[2].startswith("2 of 2 pods of the Volcano group")


def test_wait_for_further_nodes_begins_when_the_gang_is_placed() -> None:
    """The gang may wait for hours, and its job should then start with all its nodes."""
    job = placed_since(starting(gang_job(**ELASTIC)), 3600)
    job = with_status(job, members="0-3")
    pods = member(job, 0, ready=False), member(job, 1, ready=False), pod(job, 2, **UNPLACED)
    statuses = {0: waiting(job, 0), 1: waiting(job, 1)}
    early = seen(job, *pods, statuses=statuses, now=after(3629))
    assert early.status.attempt == 1
    late = seen(job, *pods, statuses=statuses, now=after(3630))
    assert members(late) == {0, 1}


def lost_gang(*, others: int, seconds: float, started: bool = False, **spec: Any) -> Plan:
    """Return the plan after the loss of node 0, while these further nodes have their place."""
    job = starting(gang_job(**spec))
    further = [pod(job, index, ready=False) for index in range(2, 2 + others)]
    statuses = {2: training(job, 2)} if started else {}
    pods = member(job, 0, **UNPLACED), member(job, 1, **UNPLACED), *further
    return seen(job, *pods, statuses=statuses, now=after(seconds))


def test_pods_outside_the_gang_give_it_their_room() -> None:
    """Otherwise the gang could wait for ever for the room that the job's own pods have."""
    assert names_of(lost_gang(others=1, seconds=29, **ELASTIC), DeletePod) == []
    assert names_of(lost_gang(others=1, seconds=30, **ELASTIC), DeletePod) == ["digits-2"]
    spared: dict[str, Any] = {"nodes": 2, "spares": 1}
    assert names_of(lost_gang(others=1, seconds=30, **spared), DeletePod) == ["digits-2"]


def test_pods_outside_the_gang_stay_while_the_job_can_train_with_them() -> None:
    assert names_of(lost_gang(others=2, seconds=300, **ELASTIC), DeletePod) == []
    started = lost_gang(others=1, seconds=300, started=True, **ELASTIC)
    assert names_of(started, DeletePod) == []


def test_job_smaller_than_its_gang_takes_a_new_one() -> None:
    """The remaining pods of a gang below its size would never be placed again."""
    job = gang_job(formed=True, nodes=4, elastic={"minNodes": 3})
    edited = gang_job(formed=True, nodes=2, elastic={"minNodes": 1})
    edited = with_status(edited, **dict(job.status))
    pods = [member(edited, index) for index in range(4)]
    plan = seen(edited, *pods)
    assert plan.status.attempts[-1].reason == "GangReplaced"
    assert plan.status.attempts[-1].message == "the gang has 3 pods and spec.nodes is 2"
    assert plan.status.pods is not None
    gang = plan.status.pods.gang
    assert gang is not None
    assert (gang.group, gang.size) == ("digits-2", 1)
    assert names_of(plan, DeletePod) == ["digits-0", "digits-1", "digits-2", "digits-3"]
    assert plan.status.free_restarts == 1
    later = with_status(edited, **dict(plan.status))
    replaced = plan_of(later, *pods, groups=[group(job), group(later, "digits-2")])
    assert replaced.status.attempt == 2
    assert names_of(replaced, DeletePod) == names_of(plan, DeletePod)


def test_smaller_job_keeps_a_gang_that_it_fills() -> None:
    job = gang_job(formed=True, nodes=4, elastic={"minNodes": 2})
    edited = with_status(gang_job(nodes=3, elastic={"minNodes": 2}), **dict(job.status))
    edited = with_status(edited, members="0-3")
    pods = member(edited, 0), member(edited, 1), pod(edited, 2), pod(edited, 3)
    statuses = {index: training(edited, index) for index in range(4)}
    plan = seen(edited, *pods, statuses=statuses)
    assert members(plan) == {0, 1, 2}
    assert names_of(plan, DeletePod) == ["digits-3"]
