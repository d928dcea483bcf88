"""Conditions and the summary condition, which `kubectl get ddpjobs` shows."""

from datetime import datetime
from typing import Any

import pytest

from ddp_operator.api.status import ConditionStatus, ConditionType, DDPJobStatus
from ddp_operator.reconcile.conditions import set_condition
from tests.operator.support import (
    NOW,
    active_job,
    after,
    agent_status,
    all_pods,
    last_failure,
    plan_for,
    pod,
    summary,
    with_status,
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
def test_condition_is_true_false_or_unknown(value: bool | None, written: ConditionStatus) -> None:
    found = put(DDPJobStatus(), value).condition(READY)
    assert (found.status, found.last_transition_time) == (written, NOW)


def test_transition_time_changes_only_with_the_value() -> None:
    first = put(DDPJobStatus(), False)
    same = put(first, False, now=after(60), reason="Other", message="new", generation=2)
    assert same.condition(READY).last_transition_time == NOW
    assert same.condition(READY).reason == "Other"
    assert same.condition(READY).message == "new"
    assert same.condition(READY).observed_generation == 2
    changed = put(same, True, now=after(90))
    assert changed.condition(READY).last_transition_time == after(90)
    assert len(changed.conditions) == 1


def test_status_times_have_whole_seconds() -> None:
    found = put(DDPJobStatus(), True, now=after(0.75)).condition(READY)
    assert found.last_transition_time == NOW


def test_change_of_one_condition_keeps_the_other_conditions() -> None:
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


def test_long_api_server_error_is_truncated() -> None:
    plan = plan_for(active_job(formed=False), blocked="forbidden: " + "x" * 50_000)
    assert summary(plan.status)[2].startswith("forbidden: xxx")


# --- Which pods train --------------------------------------------------------------------------

REUSED = {"first_attempt": "1"}
TRAINS: dict[str, tuple[int, bool, dict[str, Any], str | None, bool]] = {
    # attempt, all ranks joined, pod fields, agent report ("phase attempt"), expected result
    "first attempt, pod ready, no report": (1, False, {}, None, True),
    "first attempt, pod ready, agent trains": (1, False, {}, "Training 1", True),
    "pod not ready": (1, False, {"ready": False}, "Training 1", False),
    "pod being deleted": (1, False, {"deleting": True}, "Training 1", False),
    "later attempt, ready since an earlier one, no report": (2, False, REUSED, None, False),
    "later attempt, pod created for it and ready, no report": (2, False, {}, None, True),
    "later attempt, ready but the agent reports the previous one": (
        2,
        False,
        {},
        "Training 1",
        False,
    ),
    "later attempt, report about the previous one": (2, False, {}, "Training 1", False),
    "later attempt, agent starts": (2, False, {}, "Starting 2", False),
    "later attempt, agent trains": (2, False, {}, "Training 2", True),
    "later attempt, all ranks joined": (2, True, {}, None, True),
    "pod without an order for this attempt": (2, False, {"attempt": "1"}, "Training 1", False),
    "readiness is late": (2, False, {"ready": False}, "Training 2", False),
}


@pytest.mark.parametrize(
    ("attempt", "formed", "fields", "report", "counts"), TRAINS.values(), ids=TRAINS.keys()
)
def test_pod_counts_as_training_when_kubelet_and_agent_confirm_this_attempt(
    attempt: int, formed: bool, fields: dict[str, Any], report: str | None, counts: bool
) -> None:
    job = active_job(nodes=1, attempt=attempt, formed=formed)
    statuses = {}
    if report is not None:
        phase, of = report.split()
        statuses[0] = agent_status(0, attempt=int(of), phase=phase)
    status = plan_for(job, [pod(job, 0, **fields)], statuses=statuses).status
    if formed or not fields.get("deleting"):
        assert status.ready == ("1/1" if counts else "0/1")
    assert status.is_true(ConditionType.PODS_READY) is counts
    assert status.is_true(ConditionType.RENDEZVOUSED) is counts


@pytest.mark.parametrize(("seconds", "counts"), [(9, False), (10, True), (-5, True)])
def test_pod_that_stays_ready_counts_as_training_without_a_report(
    seconds: float, counts: bool
) -> None:
    """A restart in place may be shorter than the period of the kubelet's probe."""
    job = active_job(nodes=1, attempt=2, formed=False)
    status = plan_for(job, [pod(job, 0, **REUSED)], now=after(seconds)).status
    assert status.is_true(ConditionType.RENDEZVOUSED) is counts


@pytest.mark.parametrize(
    ("of_node_0", "of_node_1", "joined"),
    [
        ("Training 2", "Training 1", True),
        ("Training 2", "Starting 2", True),
        ("Starting 2", "Training 2", False),
        ("Training 1", "Training 2", False),
    ],
)
def test_report_of_node_0_proves_that_all_ranks_have_joined(
    of_node_0: str, of_node_1: str, joined: bool
) -> None:
    """No rank gets into the process group without all the others."""
    job = active_job(nodes=2, attempt=2, formed=False)
    statuses = {}
    for index, report in enumerate((of_node_0, of_node_1)):
        phase, attempt = report.split()
        statuses[index] = agent_status(index, attempt=int(attempt), phase=phase)
    status = plan_for(job, all_pods(job), statuses=statuses).status
    assert status.is_true(ConditionType.RENDEZVOUSED) is joined
    assert (status.ready == "2/2") is joined


def test_condition_rendezvoused_becomes_true_when_all_pods_train() -> None:
    job = active_job(nodes=3, formed=False)
    half = plan_for(job, [*all_pods(job)[:2], pod(job, 2, ready=False)]).status
    assert half.ready == "2/3"
    assert not half.is_true(ConditionType.RENDEZVOUSED)
    plan = plan_for(with_status(job, **dict(half)), all_pods(job))
    assert plan.status.ready == "3/3"
    assert plan.status.is_true(ConditionType.RENDEZVOUSED)
    assert [(e.reason, e.message) for e in plan.events] == [
        ("Running", "all ranks of attempt 1 are training")
    ]


def test_condition_rendezvoused_stays_true_while_a_probe_is_late() -> None:
    job = active_job()
    status = plan_for(job, [pod(job, 0), pod(job, 1, ready=False)]).status
    assert status.is_true(ConditionType.RENDEZVOUSED)
    assert not status.is_true(ConditionType.PODS_READY)
    assert status.ready == "1/2"
    assert summary(status)[1] == "Running"


# --- The summary -------------------------------------------------------------------------------


def test_pending_message_counts_the_existing_pods() -> None:
    job = active_job(nodes=3, formed=False)
    found = summary(plan_for(job, [pod(job, 0, ready=False)]).status)
    assert found == ("Unknown", "Pending", "1 of 3 pods exist")


def test_pending_message_names_what_a_pod_waits_for() -> None:
    job = active_job(formed=False)
    waiting = pod(job, 1, phase="Pending", ready=False, waiting="Unschedulable: 0/3 nodes")
    found = summary(plan_for(job, [pod(job, 0, ready=False), waiting]).status)
    assert found == ("Unknown", "Pending", "digits-1 waits: Unschedulable: 0/3 nodes")


def test_starting_message_names_pods_whose_ranks_have_not_joined() -> None:
    job = active_job(formed=False)
    found = summary(plan_for(job, [pod(job, 0), pod(job, 1, ready=False)]).status)
    assert found == ("Unknown", "Starting", "the ranks of digits-1 have not joined yet")


@pytest.mark.parametrize("attempt", [1, 2])
def test_message_names_the_pod_that_cannot_reach_another_and_the_port(
    attempt: int,
) -> None:
    """Node 0 knows only which node is late. The late node knows the reason."""
    failed = {} if attempt == 1 else {"last_failure": last_failure(1)}
    job = active_job(attempt=attempt, formed=False, status=failed)
    waits = [
        "waits on port 8471 for the agents of nodes 1",
        "cannot reach digits-0 on port 8471",
    ]
    statuses = {
        index: agent_status(index, attempt=attempt, phase="Waiting", waits_for=text)
        for index, text in enumerate(waits)
    }
    pods = all_pods(job, ready=False)
    for known, expected in (statuses, 1), ({0: statuses[0]}, 0):
        message = summary(plan_for(job, pods, statuses=known).status)[2]
        assert message.endswith(f"; digits-{expected} {waits[expected]}")
    older = {1: statuses[1].model_copy(update={"attempt": attempt - 1})}
    assert "port" not in summary(plan_for(job, pods, statuses=older).status)[2]


def test_starting_message_names_at_most_four_pods() -> None:
    job = active_job(nodes=100, formed=False)
    found = summary(plan_for(job, all_pods(job, ready=False)).status)
    assert found[2].startswith("the ranks of digits-0, digits-1, digits-2, digits-3 have")


def test_recovering_message_names_the_failure() -> None:
    job = active_job(attempt=2, formed=False, status={"last_failure": last_failure(1)})
    found = summary(plan_for(job, all_pods(job, ready=False)).status)
    assert found == ("Unknown", "Recovering", "attempt 2 starts because rank 0 failed")


@pytest.mark.parametrize(
    ("waiting", "suffix"),
    [
        (None, ""),
        ("ContainerCreating", ""),
        ("Unschedulable: 0/3 nodes", "; digits-1 waits: Unschedulable: 0/3 nodes"),
    ],
)
def test_recovering_message_names_a_stuck_pod(waiting: str | None, suffix: str) -> None:
    job = active_job(attempt=2, formed=False, status={"last_failure": last_failure(1)})
    pending = pod(job, 1, phase="Pending", ready=False, waiting=waiting)
    found = summary(plan_for(job, [pod(job, 0, ready=False), pending]).status)
    assert found[2] == "attempt 2 starts because rank 0 failed" + suffix


@pytest.mark.parametrize(
    ("status", "message"),
    [
        ({}, "4 ranks are training in attempt 2"),
        ({"resumed_from_step": 60}, "4 ranks are training in attempt 2, resumed from step 60"),
        (
            {"last_failure": last_failure(1)},
            "4 ranks are training in attempt 2",
        ),
    ],
    ids=["plain", "resumed", "after a failure"],
)
def test_running_message_counts_ranks_and_omits_the_last_failure(
    status: dict[str, Any], message: str
) -> None:
    job = active_job(attempt=2, procsPerNode=2, status=status)
    assert summary(plan_for(job, all_pods(job)).status) == ("Unknown", "Running", message)


def test_summary_shows_the_error_of_the_api_server() -> None:
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


@pytest.mark.parametrize(("error", "reason"), REFUSALS.items())
def test_pods_ready_reason_classifies_the_api_server_error(error: str, reason: str) -> None:
    status = plan_for(active_job(formed=False), blocked=error).status
    ready = status.condition(ConditionType.PODS_READY)
    assert ready is not None
    assert (ready.status, ready.reason, ready.message) == ("False", reason, error)


def test_every_condition_has_the_observed_generation() -> None:
    job = active_job()
    edited = job.model_copy(update={"metadata": job.metadata.model_copy(update={"generation": 5})})
    status = plan_for(edited, all_pods(edited)).status
    assert status.observed_generation == 5
    assert {c.observed_generation for c in status.conditions} == {5}


@pytest.mark.parametrize(
    ("waits", "reason"),
    [
        (("Unschedulable: 0/3 nodes", "SchedulingGated: by a queue"), "SchedulingGated"),
        (("Unschedulable: 0/3 nodes", None), "Unschedulable"),
        (("Unschedulable: 0/3 nodes", "ErrImagePull: not found"), "ErrImagePull"),
        (("ContainerCreating", None), "NotReady"),
        (("a b: strange", None), "NotReady"),
    ],
)
def test_reason_of_pods_ready_separates_a_queued_job_from_a_broken_one(
    waits: tuple[str | None, ...], reason: str
) -> None:
    job = active_job()
    pods = [
        pod(job, index, phase="Pending" if text else "Running", ready=False, waiting=text)
        for index, text in enumerate(waits)
    ]
    found = plan_for(job, pods).status.condition(READY)
    assert found is not None
    assert (found.reason, found.message) == (reason, "0 of 2 pods are training")
