"""The start of a job, and the actions that make its children match the attempt."""

from typing import Any

import pytest

from ddp_operator.api.status import ConditionType, DDPJobStatus
from ddp_operator.builders.service import build_service
from ddp_operator.reconcile.plan import CreatePod, DeletePod, EnsureChild, SetAttempt
from ddp_wire import contract
from tests.operator.support import (
    NOW,
    UID,
    active_job,
    all_pods,
    new_job,
    only,
    plan_for,
    pod,
    summary,
    with_status,
)


def test_new_job_gets_a_service_and_its_pods_in_attempt_1() -> None:
    plan = plan_for(new_job(nodes=3), service=False)
    assert plan.actions[0] == EnsureChild(build_service(new_job(nodes=3)))
    created = only(plan.actions, CreatePod)
    assert [p.manifest["metadata"]["name"] for p in created] == ["digits-0", "digits-1", "digits-2"]
    attempts = {p.manifest["metadata"]["annotations"][contract.ANNOTATION_ATTEMPT] for p in created}
    assert attempts == {"1"}
    assert len(plan.actions) == 4


def test_status_of_a_new_job_describes_attempt_1() -> None:
    job = new_job(nodes=3)
    plan = plan_for(job, service=False)
    status = plan.status
    assert (status.attempt, status.restarts, status.ready) == (1, 0, "0/3")
    assert (status.start_time, status.attempt_start_time) == (NOW, NOW)
    assert status.attempt_spec_hash == job.spec_hash
    assert status.observed_generation == 1
    assert status.selector == f"{contract.LABEL_JOB_UID}={UID}"
    assert summary(status) == ("Unknown", "Pending", "attempt 1 starts")
    assert not status.is_true(ConditionType.RENDEZVOUSED)
    assert [(e.reason, e.message) for e in plan.events] == [
        ("Started", "attempt 1 starts with 3 pods")
    ]
    assert plan.requeue_seconds == 1.0


def test_deleted_job_is_left_to_the_garbage_collector() -> None:
    job = new_job()
    metadata = job.metadata.model_copy(update={"deletion_timestamp": "2026-03-01T12:00:00Z"})
    plan = plan_for(job.model_copy(update={"metadata": metadata}), service=False)
    assert plan.status == DDPJobStatus()
    assert (plan.actions, plan.events, plan.requeue_seconds) == ((), (), None)


def test_missing_service_is_created_at_any_time() -> None:
    job = active_job()
    plan = plan_for(job, all_pods(job), service=False)
    assert plan.actions == (EnsureChild(build_service(job)),)


def test_plan_has_no_actions_when_children_match_the_attempt() -> None:
    job = active_job()
    assert plan_for(job, all_pods(job)).actions == ()


CASES: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "pod of the previous attempt gets an order": (
        {"attempt": "1"},
        [SetAttempt("digits-1", "uid-digits-1", "2")],
    ),
    "living pod of another spec is deleted gracefully": (
        {"spec_hash": "old"},
        [DeletePod("digits-1", "uid-digits-1", None)],
    ),
    "pod being deleted keeps its name until it is gone": ({"deleting": True}, []),
    "deleted pod of another spec gets no action": (
        {"deleting": True, "spec_hash": "old", "attempt": "1"},
        [],
    ),
    "pending pod gets no action": ({"phase": "Pending", "ready": False}, []),
    "pod that succeeded in this attempt stays": ({"phase": "Succeeded", "ready": False}, []),
}


@pytest.mark.parametrize(("fields", "actions"), CASES.values(), ids=CASES.keys())
def test_starting_attempt_has_the_expected_actions(
    fields: dict[str, Any], actions: list[Any]
) -> None:
    job = active_job(attempt=2, formed=False)
    plan = plan_for(job, [pod(job, 0), pod(job, 1, **fields)])
    assert list(plan.actions) == actions


def test_pod_that_ended_in_an_earlier_attempt_is_replaced() -> None:
    job = active_job(attempt=2, formed=False)
    plan = plan_for(job, [pod(job, 0), pod(job, 1, phase="Failed", attempt="1", ready=False)])
    deleted, created = plan.actions
    assert isinstance(created, CreatePod)
    assert deleted == DeletePod("digits-1", "uid-digits-1", 0)
    assert created.manifest["metadata"]["name"] == "digits-1"
    assert created.manifest["metadata"]["annotations"][contract.ANNOTATION_ATTEMPT] == "2"
    assert plan.status.attempt == 2


def test_missing_pod_is_created_in_the_starting_attempt() -> None:
    job = active_job(attempt=2, formed=False)
    plan = plan_for(job, [pod(job, 0)])
    assert [a.manifest["metadata"]["name"] for a in only(plan.actions, CreatePod)] == ["digits-1"]
    assert plan.status.attempt == 2


def test_surplus_pods_are_deleted() -> None:
    job = active_job(nodes=2)
    extra = pod(active_job(nodes=3), 2)
    plan = plan_for(job, [*all_pods(job), extra])
    assert list(plan.actions) == [DeletePod("digits-2", extra.uid, None)]


def test_surplus_pod_is_deleted_once() -> None:
    job = active_job(nodes=2)
    extra = pod(active_job(nodes=3), 2, deleting=True)
    assert plan_for(job, [*all_pods(job), extra]).actions == ()


def test_changed_spec_starts_a_free_attempt() -> None:
    job = active_job(nodes=2)
    edited = with_status(new_job(nodes=2, image="other:1"), **job.status.model_copy().__dict__)
    plan = plan_for(edited, all_pods(job))
    assert (plan.status.attempt, plan.status.restarts) == (2, 0)
    assert plan.status.attempt_spec_hash == edited.spec_hash != job.spec_hash
    assert list(plan.actions) == [DeletePod(p.name, p.uid, None) for p in all_pods(job)]
    assert [(e.type.value, e.reason) for e in plan.events] == [("Normal", "SpecChanged")]
    assert not plan.status.is_true(ConditionType.RENDEZVOUSED)


def test_smaller_job_starts_a_new_attempt_without_the_surplus_pods() -> None:
    job = active_job(nodes=3)
    smaller = with_status(new_job(nodes=2), **job.status.__dict__)
    plan = plan_for(smaller, all_pods(job))
    assert plan.status.attempt == 2
    assert {a.name for a in only(plan.actions, DeletePod)} == {"digits-0", "digits-1", "digits-2"}
    assert plan.status.ready == "0/2"


def test_pod_with_an_old_name_is_no_fault_while_it_ends() -> None:
    """From 10 to 11 nodes all pods get new names. The old pods have 60 s to save."""
    job = active_job(nodes=11, attempt=2)
    old = pod(active_job(nodes=10), 0, deleting=True, spec_hash="old")
    assert old.name == "digits-0"
    plan = plan_for(job, [old, *all_pods(job)])
    assert (plan.status.attempt, plan.status.restarts) == (2, 0)
    assert plan.events == ()
