"""Spare pods: they wait, and take the place of lost members."""

from typing import Any

import pytest

from ddp_operator.api.job import DDPJob
from ddp_operator.api.members import DepartureStatus
from ddp_operator.reconcile.plan import CreatePod, DeletePod
from tests.operator.elastic_support import members, pods, starting, training, waiting
from tests.operator.support import active_job, after, new_job, plan_for, with_status


def job_with_spare(**status: Any) -> DDPJob:
    """Return a job of two nodes and a spare, in its second attempt."""
    return active_job(nodes=2, spares=1, attempt=2, status={"members": "0-1", **status})


def test_spare_gets_a_pod_of_its_own_priority_and_no_part_in_the_attempt() -> None:
    plan = plan_for(new_job(nodes=2, spares=1, sparePriorityClassName="low"))
    assert plan.status.members == "0-1"
    pods_of = {a.name: a.manifest for a in plan.actions if isinstance(a, CreatePod)}
    classes = {n: p["spec"].get("priorityClassName") for n, p in pods_of.items()}
    assert classes == {"digits-0": None, "digits-1": None, "digits-2": "low"}
    annotations = pods_of["digits-2"]["metadata"]["annotations"]
    assert annotations["ddp-trainer.dev/attempt"] == "1:0-1"


@pytest.mark.parametrize("lost", [0, 1])
def test_spare_takes_the_place_of_a_lost_node_at_once(lost: int) -> None:
    job, rest = job_with_spare(), 1 - lost
    statuses = {rest: training(job, rest), 2: waiting(job, 2)}
    plan = plan_for(job, pods(job, (rest, 2)), statuses=statuses)
    assert members(plan) == {rest, 2}
    assert plan.status.infrastructure_restarts == 1


def test_lost_pod_is_created_as_the_next_spare_once_the_others_train() -> None:
    job = job_with_spare(members="0,2")
    statuses = {0: training(job, 0), 2: training(job, 2)}
    trains = plan_for(job, pods(job, (0, 2)), statuses=statuses)
    starts = starting(job)
    early = plan_for(starts, pods(starts, (0, 2), ()), statuses=statuses, now=after(4.9))
    late = plan_for(starts, pods(starts, (0, 2), ()), statuses=statuses, now=after(5))
    created = [
        [a.name for a in plan.actions if isinstance(a, CreatePod)] for plan in (trains, early, late)
    ]
    assert created == [["digits-1"], [], ["digits-1"]]


def test_spare_on_a_node_with_a_recent_departure_replaces_a_lost_node_if_no_other_can() -> None:
    left = [DepartureStatus(node="machine-2", time=after(s)) for s in (-20, -10)]
    job = job_with_spare(departures=left)
    statuses = {0: training(job, 0), 2: waiting(job, 2)}
    assert members(plan_for(job, pods(job, (0, 2)), statuses=statuses)) == {0, 2}


def test_spare_that_is_not_ready_does_not_replace_a_lost_node() -> None:
    job = job_with_spare()
    statuses = {0: training(job, 0), 2: waiting(job, 2, warm=False)}
    plan = plan_for(job, pods(job, (0, 2)), statuses=statuses)
    assert members(plan) == {0, 1}
    job = starting(with_status(job, **dict(plan.status)))
    statuses = {0: waiting(job, 0), 2: waiting(job, 2)}
    later = plan_for(job, pods(job, (0, 2), ()), statuses=statuses, now=after(1))
    assert members(later) == {0, 2}, "it is ready before the lost node is back"


def test_job_of_a_fixed_size_never_trains_with_fewer_nodes() -> None:
    job = starting(job_with_spare())
    statuses = {0: waiting(job, 0)}
    plan = plan_for(job, pods(job, (0, 2), ()), statuses=statuses, now=after(9999))
    assert plan.status.attempt == 2


def test_status_counts_the_spares_that_are_ready() -> None:
    job = job_with_spare()
    statuses = {0: training(job, 0), 1: training(job, 1), 2: waiting(job, 2)}
    plan = plan_for(job, pods(job, range(3)), statuses=statuses)
    assert (plan.status.ready, plan.status.spares) == ("2/2", "1/1")
    assert not [a for a in plan.actions if isinstance(a, CreatePod | DeletePod)]
