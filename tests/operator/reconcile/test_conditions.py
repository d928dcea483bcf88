"""Conditions and the summary: what `kubectl get ddpjobs` shows, and when it changes."""

from datetime import datetime
from typing import Any

import pytest

from ddp_operator.api.status import ConditionStatus, ConditionType, DDPJobStatus
from ddp_operator.reconcile.conditions import set_condition
from tests.operator.support import (
    NOW,
    active_job,
    after,
    all_pods,
    last_failure,
    plan_for,
    pod,
    summary,
    with_status,
    word,
)

READY = ConditionType.PODS_READY


def put(status: DDPJobStatus, value: bool | None, *, now: datetime = NOW, **more: Any) -> Any:
    given: dict[str, Any] = {"reason": "Because", "message": "", "generation": 1} | more
    return set_condition(status, READY, value, now=now, **given)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (True, ConditionStatus.TRUE),
        (False, ConditionStatus.FALSE),
        (None, ConditionStatus.UNKNOWN),
    ],
)
def test_a_condition_is_true_false_or_unknown(value: bool | None, written: ConditionStatus) -> None:
    found = put(DDPJobStatus(), value).condition(READY)
    assert (found.status, found.last_transition_time) == (written, NOW)


def test_the_transition_time_moves_only_when_the_value_does() -> None:
    first = put(DDPJobStatus(), False)
    same = put(first, False, now=after(60), reason="Other", message="new", generation=2)
    assert same.condition(READY).last_transition_time == NOW
    assert same.condition(READY).reason == "Other"
    assert same.condition(READY).message == "new"
    assert same.condition(READY).observed_generation == 2
    changed = put(same, True, now=after(90))
    assert changed.condition(READY).last_transition_time == after(90)
    assert len(changed.conditions) == 1


def test_times_in_the_status_have_whole_seconds_as_the_api_server_keeps_them() -> None:
    found = put(DDPJobStatus(), True, now=after(0.75)).condition(READY)
    assert found.last_transition_time == NOW


def test_a_condition_leaves_the_others_alone() -> None:
    status = set_condition(
        put(DDPJobStatus(), True),
        ConditionType.SUSPENDED,
        False,
        "R",
        "",
        now=NOW,
        generation=1,
    )
    assert [c.type for c in put(status, False).conditions] == [READY, ConditionType.SUSPENDED]


def test_a_refusal_longer_than_a_message_may_be_is_cut() -> None:
    plan = plan_for(active_job(formed=False), blocked="forbidden: " + "x" * 50_000)
    assert summary(plan.status)[2].startswith("forbidden: xxx")


# --- Which pods train --------------------------------------------------------------------------

TRAINS: dict[str, tuple[int, bool, dict[str, Any], str | None, bool]] = {
    # attempt, formed, pod, agent's word ("phase attempt"), whether it counts
    "the first attempt, ready, no word": (1, False, {}, None, True),
    "the first attempt, ready by its word": (1, False, {}, "Training 1", True),
    "not ready": (1, False, {"ready": False}, "Training 1", False),
    "being deleted": (1, False, {"deleting": True}, "Training 1", False),
    "a later attempt, ready, no word": (2, False, {}, None, False),
    "a later attempt, the old one's word": (2, False, {}, "Training 1", False),
    "a later attempt, starting by its word": (2, False, {}, "Starting 2", False),
    "a later attempt, ready by its word": (2, False, {}, "Training 2", True),
    "a later attempt, formed": (2, True, {}, None, True),
    "not told yet": (2, False, {"attempt": "1"}, "Training 1", False),
    "the kubelet is late": (2, False, {"ready": False}, "Training 2", False),
}


@pytest.mark.parametrize(
    ("attempt", "formed", "fields", "said", "counts"), TRAINS.values(), ids=TRAINS.keys()
)
def test_a_pod_trains_when_kubelet_and_agent_say_so_of_this_attempt(
    attempt: int, formed: bool, fields: dict[str, Any], said: str | None, counts: bool
) -> None:
    job = active_job(nodes=1, attempt=attempt, formed=formed)
    words = {}
    if said is not None:
        phase, of = said.split()
        words[0] = word(0, attempt=int(of), phase=phase)
    status = plan_for(job, [pod(job, 0, **fields)], words=words).status
    if formed or not fields.get("deleting"):
        assert status.ready == ("1/1" if counts else "0/1")
    assert status.is_true(ConditionType.PODS_READY) is counts
    assert status.is_true(ConditionType.RENDEZVOUSED) is counts


def test_all_ranks_have_joined_when_all_pods_train() -> None:
    job = active_job(nodes=3, formed=False)
    half = plan_for(job, [*all_pods(job)[:2], pod(job, 2, ready=False)]).status
    assert half.ready == "2/3"
    assert not half.is_true(ConditionType.RENDEZVOUSED)
    plan = plan_for(with_status(job, **dict(half)), all_pods(job))
    assert plan.status.ready == "3/3"
    assert plan.status.is_true(ConditionType.RENDEZVOUSED)
    assert [(e.reason, e.message) for e in plan.events] == [
        ("Running", "all ranks of attempt 1 train")
    ]


def test_that_all_ranks_have_joined_stays_true_while_a_probe_is_late() -> None:
    job = active_job()
    status = plan_for(job, [pod(job, 0), pod(job, 1, ready=False)]).status
    assert status.is_true(ConditionType.RENDEZVOUSED)
    assert not status.is_true(ConditionType.PODS_READY)
    assert status.ready == "1/2"
    assert summary(status)[1] == "Running"


# --- The summary -------------------------------------------------------------------------------


def test_pending_says_how_many_pods_exist() -> None:
    job = active_job(nodes=3, formed=False)
    said = summary(plan_for(job, [pod(job, 0, ready=False)]).status)
    assert said == ("Unknown", "Pending", "1 of 3 pods exist")


def test_pending_says_what_a_pod_waits_for() -> None:
    job = active_job(formed=False)
    waiting = pod(job, 1, phase="Pending", ready=False, waiting="Unschedulable: 0/3 nodes")
    said = summary(plan_for(job, [pod(job, 0, ready=False), waiting]).status)
    assert said == ("Unknown", "Pending", "digits-1 waits: Unschedulable: 0/3 nodes")


def test_starting_says_whose_ranks_are_missing() -> None:
    job = active_job(formed=False)
    said = summary(plan_for(job, [pod(job, 0), pod(job, 1, ready=False)]).status)
    assert said == ("Unknown", "Starting", "ranks of digits-1 are not in the process group yet")


def test_starting_names_a_few_of_many() -> None:
    job = active_job(nodes=100, formed=False)
    said = summary(plan_for(job, all_pods(job, ready=False)).status)
    assert said[2].startswith("ranks of digits-00, digits-01, digits-02, digits-03 are")


def test_recovering_says_from_what() -> None:
    job = active_job(attempt=2, formed=False, status={"last_failure": last_failure(1)})
    said = summary(plan_for(job, all_pods(job, ready=False)).status)
    assert said == ("Unknown", "Recovering", "attempt 2 follows because rank 0 failed")


@pytest.mark.parametrize(
    ("waiting", "told"),
    [
        (None, ""),
        ("ContainerCreating", ""),
        ("Unschedulable: 0/3 nodes", "; digits-1 waits: Unschedulable: 0/3 nodes"),
    ],
)
def test_recovering_says_what_holds_it_up(waiting: str | None, told: str) -> None:
    job = active_job(attempt=2, formed=False, status={"last_failure": last_failure(1)})
    pending = pod(job, 1, phase="Pending", ready=False, waiting=waiting)
    said = summary(plan_for(job, [pod(job, 0, ready=False), pending]).status)
    assert said[2] == "attempt 2 follows because rank 0 failed" + told


@pytest.mark.parametrize(
    ("status", "message"),
    [
        ({}, "4 ranks train in attempt 2"),
        ({"resumed_from_step": 60}, "4 ranks train in attempt 2, resumed from step 60"),
        (
            {"last_failure": last_failure(1)},
            "4 ranks train in attempt 2, after rank 0 failed",
        ),
    ],
    ids=["plain", "resumed", "after a failure"],
)
def test_running_says_how_many_ranks_train_and_since_what(
    status: dict[str, Any], message: str
) -> None:
    job = active_job(attempt=2, procsPerNode=2, status=status)
    assert summary(plan_for(job, all_pods(job)).status) == ("Unknown", "Running", message)


def test_what_the_api_server_refuses_is_what_people_read() -> None:
    job = active_job(formed=False)
    status = plan_for(job, [pod(job, 0)], blocked="exceeded quota: pods").status
    assert summary(status) == ("Unknown", "Pending", "exceeded quota: pods")


REFUSALS = {
    'pods "a" is forbidden: exceeded quota: two, requested: pods=1': "QuotaExceeded",
    'pods "a" is forbidden: violates PodSecurity "restricted:latest"': "AdmissionRejected",
    'admission webhook "no.example" denied the request: no': "AdmissionRejected",
    'Internal error occurred: failed calling webhook "no.example"': "WebhookFailed",
    'pods is forbidden: User "x" cannot create resource "pods"': "NotPermitted",
    "Pod a exists already and is not this job's": "NameConflict",
    "the API server did not answer: TimeoutError()": "NotServed",
}


@pytest.mark.parametrize(("sentence", "reason"), REFUSALS.items())
def test_pods_ready_says_in_a_word_what_kind_of_refusal_it_is(sentence: str, reason: str) -> None:
    status = plan_for(active_job(formed=False), blocked=sentence).status
    ready = status.condition(ConditionType.PODS_READY)
    assert ready is not None
    assert (ready.status, ready.reason, ready.message) == ("False", reason, sentence)


def test_every_condition_speaks_of_the_generation_that_was_judged() -> None:
    job = active_job()
    edited = job.model_copy(update={"metadata": job.metadata.model_copy(update={"generation": 5})})
    status = plan_for(edited, all_pods(edited)).status
    assert status.observed_generation == 5
    assert {c.observed_generation for c in status.conditions} == {5}
