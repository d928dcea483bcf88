"""The conditions Ready, Reconciling and Stalled, and what kstatus computes from them."""

from collections.abc import Mapping
from typing import Any

import pytest

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import ConditionType, DDPJobStatus
from ddp_operator.reconcile.conditions import INVALID
from ddp_operator.reconcile.invalid_spec import invalid_spec_status
from ddp_operator.reconcile.kstatus import with_kstatus_conditions
from ddp_operator.reconcile.plan import CreatePod
from ddp_operator.reconcile.status_throttle import seconds_until_write
from tests.operator.support import (
    NOW,
    active_job,
    after,
    all_pods,
    condition,
    ended,
    finished_job,
    job_manifest,
    new_job,
    only,
    plan_for,
    pod,
    summary,
    to_wire,
    with_status,
    world,
)

READY, RECONCILING, STALLED = (
    ConditionType.READY,
    ConditionType.RECONCILING,
    ConditionType.STALLED,
)


def computed(job: Mapping[str, Any]) -> str:
    """Return the status that kstatus computes for a custom resource, by its published rules."""
    status = job["status"]
    if status.get("observedGeneration", 0) != job["metadata"]["generation"]:
        return "InProgress"
    values = {c["type"]: c["status"] for c in status["conditions"]}
    if values.get("Reconciling") == "True":
        return "InProgress"
    if values.get("Stalled") == "True":
        return "Failed"
    return "Current" if values.get("Ready", "True") == "True" else "InProgress"


def seen_by_kstatus(job: DDPJob, status: DDPJobStatus) -> str:
    return computed(
        {"metadata": {"generation": job.metadata.generation}, "status": to_wire(status)}
    )


RESULTS = {
    # reason and value of the summary, value of Suspended: expected result
    ("Pending", "Unknown", None): "InProgress",
    ("Starting", "Unknown", None): "InProgress",
    ("Recovering", "Unknown", None): "InProgress",
    ("Suspended", "Unknown", "False"): "InProgress",
    ("Suspended", "Unknown", "True"): "Current",
    ("Running", "Unknown", None): "Current",
    ("Running", "Unknown", "False"): "Current",
    ("Completed", "True", None): "Current",
    (INVALID, "Unknown", None): "Failed",
    ("Failed", "False", None): "Failed",
}


@pytest.mark.parametrize(
    ("shown", "expected"),
    RESULTS.items(),
    ids=lambda one: one if isinstance(one, str) else "-".join(map(str, one)),
)
@pytest.mark.parametrize("before", ["nothing", *sorted({reason for reason, _, _ in RESULTS})])
def test_kstatus_computes_each_state_whatever_the_state_before(
    shown: tuple[str, str, str | None], expected: str, before: str
) -> None:
    reason, value, suspended = shown
    old = DDPJobStatus(observed_generation=1)
    if before != "nothing":
        summaries = [condition(ConditionType.SUCCEEDED, "Unknown", before)]
        old = old.model_copy(update={"conditions": summaries})
        old = with_kstatus_conditions(old, NOW, 1)
    conditions = [c for c in old.conditions if c.type in {READY, RECONCILING, STALLED}]
    conditions.append(condition(ConditionType.SUCCEEDED, value, reason))
    if suspended is not None:
        conditions.append(condition(ConditionType.SUSPENDED, suspended))
    status = old.model_copy(update={"conditions": conditions})
    status = with_kstatus_conditions(status, after(5), 1)
    assert seen_by_kstatus(new_job(), status) == expected
    ready = status.condition(READY)
    assert ready is not None
    assert (ready.reason, ready.status) == (reason, "True" if expected == "Current" else "False")


def test_reconciling_and_stalled_exist_only_while_true() -> None:
    for reason, present in (("Pending", RECONCILING), (INVALID, STALLED), ("Running", None)):
        shown = condition(ConditionType.SUCCEEDED, "Unknown", reason)
        status = with_kstatus_conditions(DDPJobStatus(conditions=[shown]), NOW, 1)
        kinds = {c.type for c in status.conditions} - {ConditionType.SUCCEEDED, READY}
        assert kinds == ({present} if present else set())


def test_status_without_a_summary_gets_no_conditions() -> None:
    assert with_kstatus_conditions(DDPJobStatus(), NOW, 1) == DDPJobStatus()


def test_transition_time_of_ready_changes_only_with_its_value() -> None:
    def after_summary(old: DDPJobStatus, reason: str, seconds: float) -> DDPJobStatus:
        kept = [c for c in old.conditions if c.type is not ConditionType.SUCCEEDED]
        shown = condition(ConditionType.SUCCEEDED, "Unknown", reason)
        status = old.model_copy(update={"conditions": [*kept, shown]})
        return with_kstatus_conditions(status, after(seconds), 1)

    pending = after_summary(DDPJobStatus(), "Pending", 0)
    starting = after_summary(pending, "Starting", 5)
    running = after_summary(starting, "Running", 9)
    times = [s.condition(READY) for s in (pending, starting, running)]
    assert [c.last_transition_time for c in times if c] == [NOW, NOW, after(9)]


# --- With the operator's decisions --------------------------------------------------------------


def test_job_becomes_ready_when_its_ranks_train_and_stays_so_when_it_completes() -> None:
    job = active_job(formed=False)
    starting = plan_for(job, all_pods(job, ready=False)).status
    assert seen_by_kstatus(job, starting) == "InProgress"
    running = plan_for(job, all_pods(job)).status
    assert running.is_true(READY)
    assert seen_by_kstatus(job, running) == "Current"
    done = all_pods(job, phase="Succeeded", ready=False, termination=ended(0))
    completed = plan_for(with_status(job, **dict(running)), done, now=after(60)).status
    assert seen_by_kstatus(job, completed) == "Current"
    ready = completed.condition(READY)
    assert ready is not None
    assert (ready.reason, ready.last_transition_time) == ("Completed", NOW)


def test_failed_job_is_stalled_with_its_message() -> None:
    job = active_job(maxRestarts=0)
    failed = pod(job, 1, phase="Failed", ready=False, termination=ended(1))
    status = plan_for(job, [pod(job, 0), failed]).status
    stalled = status.condition(STALLED)
    assert stalled is not None
    assert stalled.message == summary(status)[2] != ""
    assert status.condition(RECONCILING) is None
    assert seen_by_kstatus(job, status) == "Failed"


def test_recovering_job_is_in_progress_until_it_trains_again() -> None:
    job = active_job()
    failed = pod(job, 1, phase="Failed", ready=False, termination=ended(1))
    status = plan_for(job, [pod(job, 0), failed]).status
    assert summary(status)[1] == "Recovering"
    assert seen_by_kstatus(job, status) == "InProgress"


def test_suspended_job_is_current_once_its_pods_have_ended() -> None:
    job = active_job(suspend=True)
    stopping = plan_for(job, all_pods(job)).status
    assert seen_by_kstatus(job, stopping) == "InProgress"
    stopped = plan_for(with_status(job, **dict(stopping)), ()).status
    assert seen_by_kstatus(job, stopped) == "Current"


def test_invalid_job_is_stalled_until_it_is_edited() -> None:
    raw = job_manifest(nodes=0)
    written = invalid_spec_status(raw, "spec.nodes: must be at least 1", NOW)
    assert written is not None
    assert computed({**raw, "status": written}) == "Failed"
    assert (
        invalid_spec_status({**raw, "status": written}, "spec.nodes: must be at least 1", NOW)
        is None
    )
    edited = job_manifest(nodes=2)
    edited["metadata"]["generation"] = 2
    assert computed({**edited, "status": written}) == "InProgress"
    job = new_job(nodes=2)
    job = job.model_copy(update={"status": DDPJobStatus.model_validate(written)})
    plan = plan_for(job)
    assert only(plan.actions, CreatePod)
    assert plan.status.condition(STALLED) is None


# --- Requests to the API server -----------------------------------------------------------------


@pytest.mark.parametrize("succeeded", [True, False])
def test_conditions_alone_never_cause_a_status_write(succeeded: bool) -> None:
    """A job that ended under an operator without these conditions stays as it is."""
    job = finished_job(succeeded=succeeded)
    done = all_pods(job, phase="Succeeded", ready=False)
    settled = plan_for(job, done).status
    assert settled.condition(READY) is not None
    stored = with_status(job, **dict(settled))
    old = [c for c in stored.status.conditions if c.type not in {READY, STALLED}]
    older = with_status(stored, conditions=old)
    assert plan_for(older, done).status == older.status


def test_count_of_pods_in_the_message_of_reconciling_causes_no_early_write() -> None:
    job = active_job(nodes=4, formed=False)
    first = plan_for(job, all_pods(job, ready=False)).status
    job = with_status(job, **dict(first))
    seen = world(job, [pod(job, i, ready=i > 0) for i in range(4)], now=after(2))
    plan = plan_for(job, seen.pods, now=after(2))
    messages = [s.condition(RECONCILING) for s in (first, plan.status)]
    assert len({c.message for c in messages if c}) == 2
    assert seconds_until_write(seen, plan, after(1)) > 0
