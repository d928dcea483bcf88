"""The decisions about a job's init steps: order, retries, ends, and what later attempts do."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from ddp_operator.api.goodput import Bucket
from ddp_operator.api.init import InitStatus
from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import ConditionType, DDPJobStatus
from ddp_operator.builders import names
from ddp_operator.cluster.base import Manifest
from ddp_operator.reconcile import init_state
from ddp_operator.reconcile.decide import decide
from ddp_operator.reconcile.plan import CreatePod, DeletePod, EnsureChild, Plan
from ddp_operator.reconcile.pod_view import PodView
from ddp_operator.reconcile.world import World
from tests.operator.support import (
    DEFAULTS,
    NOW,
    active_job,
    after,
    all_pods,
    ended,
    new_job,
    only,
    summary,
    with_status,
    world,
)

FETCH = {"name": "fetch", "command": ["fetch"]}
CONVERT = {"name": "convert", "task": "data:convert"}
STEPS = [FETCH, CONVERT]


def at(job: DDPJob, completed: int = 0, **fields: Any) -> DDPJob:
    """Return a job whose next step is in its first try, or as `fields` say."""
    done = init_state.first_try(job, completed, NOW).model_copy(update=fields)
    return with_status(job, init=done, start_time=NOW)


def pod_of(job: DDPJob, **fields: Any) -> PodView:
    """Return the running pod of the current try of a job."""
    done = job.status.init
    assert done is not None
    assert done.step is not None
    name = names.init_pod_name(job, done.step, done.tries)
    given: dict[str, Any] = {"uid": f"uid-{name}", "index": -1, "phase": "Running"}
    given |= {"name": name, "init_step": done.step, "spec_hash": done.spec_hash}
    return PodView(**(given | fields))


def failed(job: DDPJob, code: int = 1, words: str = "no such host") -> PodView:
    return pod_of(job, phase="Failed", termination=ended(code, words=words))


def seen(job: DDPJob, *init_pods: PodView, **fields: Any) -> World:
    return replace(world(job), init_pods=init_pods, **fields)


def plan_of(job: DDPJob, *init_pods: PodView, **fields: Any) -> Plan:
    return decide(seen(job, *init_pods, **fields), DEFAULTS)


def created(plan: Plan) -> list[Manifest]:
    return [a.manifest for a in only(plan.actions, EnsureChild) if a.manifest["kind"] == "Pod"]


def progress(status: DDPJobStatus) -> InitStatus:
    assert status.init is not None
    return status.init


def test_first_step_starts_before_any_worker() -> None:
    plan = plan_of(new_job(init=STEPS))
    [pod] = created(plan)
    assert pod["metadata"]["name"] == "digits-init-fetch-1"
    assert only(plan.actions, CreatePod) == []
    assert (plan.status.attempt, progress(plan.status).step) == (0, "fetch")
    assert summary(plan.status)[1:] == ("Pending", "init step fetch (1 of 2) starts")


def test_pod_waits_for_the_other_children_and_above_all_for_the_claim() -> None:
    job = new_job(init=STEPS, checkpoint={"claimTemplate": {"size": "1Gi"}})
    plan = plan_of(job)
    assert [a.name for a in only(plan.actions, EnsureChild)] == ["digits-checkpoints"]
    assert created(plan) == []


def test_running_step_is_shown_and_needs_no_action() -> None:
    job = at(new_job(init=STEPS))
    plan = plan_of(job, pod_of(job))
    assert plan.actions == ()
    running = "init step fetch (1 of 2) is running in digits-init-fetch-1"
    assert summary(plan.status)[1:] == ("Starting", running)
    assert plan.status.next_action == "the operator waits until init step fetch has completed"
    stuck = pod_of(job, phase="Pending", waiting="ErrImagePull: no such image")
    assert summary(plan_of(job, stuck).status)[1:] == (
        "Pending",
        "init step fetch (1 of 2) waits in digits-init-fetch-1: ErrImagePull: no such image",
    )


def test_completed_step_is_followed_by_the_next_and_then_by_the_ranks() -> None:
    job = at(new_job(init=STEPS))
    plan = plan_of(job, pod_of(job, phase="Succeeded", termination=ended(0)))
    assert (progress(plan.status).completed, progress(plan.status).step) == (1, "convert")
    assert [e.reason for e in plan.events] == ["InitStepCompleted"]
    [pod] = created(plan_of(with_status(job, init=plan.status.init)))
    assert pod["metadata"]["name"] == "digits-init-convert-1"
    done = at(job, 2)
    plan = plan_of(done)
    assert (plan.status.attempt, progress(plan.status).completed) == (1, 2)
    assert len(only(plan.actions, CreatePod)) == 1
    assert plan.status.start_time == NOW


def test_failed_try_is_repeated_after_a_delay_with_its_number() -> None:
    job = at(new_job(init=[FETCH]))
    plan = plan_of(job, failed(job))
    again = progress(plan.status)
    assert (again.tries, again.failures, again.start_time) == (2, 1, after(1))
    [event] = plan.events
    assert event.reason == "InitStepRetried"
    assert event.message == (
        "init step fetch starts again at 12:00:01 UTC because it ended with exit code 1: no such"
        " host"
    )
    job = with_status(job, init=again)
    early = plan_of(job, failed(at(job)))
    assert created(early) == []
    assert early.requeue_seconds == 1.0
    [pod] = created(plan_of(job, failed(at(job)), now=after(1)))
    assert pod["metadata"]["name"] == "digits-init-fetch-2"
    env = {e["name"]: e.get("value") for e in pod["spec"]["containers"][0]["env"]}
    assert env["DDP_INIT_TRY"] == "2"


def test_delays_double_up_to_five_minutes() -> None:
    done = init_state.first_try(new_job(init=[FETCH]), 0, NOW)
    waits = []
    for _ in range(11):
        done = init_state.next_try(done, NOW, "", failed=True)
        assert done.start_time is not None
        waits.append((done.start_time - NOW) // timedelta(seconds=1))
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]


def test_spent_retries_fail_the_job_with_the_last_line_of_the_step() -> None:
    job = at(new_job(init=[{**FETCH, "maxRetries": 2}]), tries=4, failures=2)
    plan = plan_of(job, failed(job, 7))
    message = (
        "init step fetch failed: it ended with exit code 7: no such host (it is not retried:"
        " maxRetries is 2)"
    )
    assert summary(plan.status) == ("False", "Failed", message)
    failure = plan.status.last_failure
    assert failure is not None
    assert (failure.reason, failure.exit_code, failure.pod) == (
        "InitFailed",
        7,
        "digits-init-fetch-4",
    )
    assert plan.status.is_true(ConditionType.FAILED)
    assert [e.reason for e in plan.events] == ["InitFailed"]


@pytest.mark.parametrize(("step", "retried"), [(FETCH, True), (CONVERT, False)])
def test_only_a_task_reports_invalid_input_by_exit_code_2(
    step: dict[str, Any], retried: bool
) -> None:
    job = at(new_job(init=[step]))
    plan = plan_of(job, failed(job, 2))
    assert (summary(plan.status)[1] == "Pending") is retried


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"deleting": True}, "deleted"),
        ({"disruption": "DeletionByTaintManager"}, "DeletionByTaintManager"),
        ({"phase": "Failed", "reason": "NodeLost"}, "NodeLost"),
    ],
    ids=["deleted", "node lost", "failed without a container"],
)
def test_lost_pod_costs_no_retry(fields: dict[str, Any], why: str) -> None:
    job = at(new_job(init=[{**FETCH, "maxRetries": 0}]))
    plan = plan_of(job, pod_of(job, **fields))
    again = progress(plan.status)
    assert (again.tries, again.failures) == (2, 0)
    assert again.message == f"digits-init-fetch-1 was lost ({why})"


def test_next_try_waits_until_the_lost_pod_is_gone() -> None:
    job = at(new_job(init=[FETCH]))
    lost = pod_of(job, deleting=True, grace=timedelta(seconds=60))
    job = with_status(job, init=progress(plan_of(job, lost).status))
    plan = plan_of(job, lost, now=after(10))
    assert created(plan) == []
    assert summary(plan.status)[2] == "init step fetch waits for digits-init-fetch-1 to end"
    overdue = {lost.uid: timedelta(seconds=90)}
    forced = plan_of(job, lost, now=after(90), deleting_for=overdue)
    assert only(forced.actions, DeletePod) == [DeletePod(lost.name, lost.uid, 0)]


def test_suspension_stops_the_step_and_a_resumption_tries_it_again() -> None:
    steps = at(new_job(init=[FETCH]))
    job = at(new_job(init=[FETCH], suspend=True))
    plan = plan_of(job, pod_of(steps))
    assert only(plan.actions, DeletePod) == [
        DeletePod("digits-init-fetch-1", "uid-digits-init-fetch-1")
    ]
    assert not plan.status.is_true(ConditionType.SUSPENDED)
    assert (progress(plan.status).tries, progress(plan.status).failures) == (2, 0)
    stopped = with_status(job, **dict(plan.status))
    again = plan_of(stopped, pod_of(steps, deleting=True))
    assert progress(again.status).tries == 2
    gone = plan_of(with_status(stopped, **dict(again.status)))
    assert gone.status.is_true(ConditionType.SUSPENDED)
    resumed = new_job(init=[FETCH]).model_copy(update={"status": gone.status})
    [pod] = created(plan_of(resumed, now=after(60)))
    assert pod["metadata"]["name"] == "digits-init-fetch-2"


def test_suspension_runs_no_step_again_that_has_just_succeeded() -> None:
    job = at(new_job(suspend=True, init=STEPS))
    done = pod_of(job, phase="Succeeded", termination=ended(0))
    first = plan_of(job, done)
    assert (progress(first.status).completed, progress(first.status).step) == (1, "convert")
    again = plan_of(job.model_copy(update={"status": first.status}), done)
    assert again.status.init == first.status.init
    resumed = new_job(init=STEPS).model_copy(update={"status": again.status})
    assert [pod["metadata"]["name"] for pod in created(plan_of(resumed))] == [
        "digits-init-convert-1"
    ]


def test_later_attempts_do_not_run_completed_steps_again() -> None:
    job = at(active_job(init=STEPS), 2)
    lost = decide(world(job, all_pods(job)[:1]), DEFAULTS)
    assert lost.status.attempt == 2
    edited = at(active_job(init=STEPS), 2)
    other = new_job(nodes=2, init=STEPS, image="other:1")
    plan = decide(
        world(other.model_copy(update={"status": edited.status}), all_pods(edited)), DEFAULTS
    )
    assert (plan.status.attempt, progress(plan.status).completed) == (2, 2)


def test_changed_steps_end_the_attempt_and_run_from_the_first() -> None:
    before = at(active_job(init=[FETCH]), 1)
    job = new_job(nodes=2, init=STEPS).model_copy(update={"status": before.status})
    old = pod_of(at(before), phase="Succeeded", termination=ended(0))
    plan = decide(replace(world(job, all_pods(before)), init_pods=(old,)), DEFAULTS)
    assert plan.status.attempt_spec_hash is None
    assert [a.reason for a in plan.status.attempts] == ["SpecChanged"]
    deleted = sorted(action.name for action in only(plan.actions, DeletePod))
    assert deleted == ["digits-0", "digits-1", "digits-init-fetch-1"]
    assert created(plan) == []
    stopped = job.model_copy(update={"status": plan.status})
    [pod] = created(plan_of(stopped))
    assert pod["metadata"]["name"] == "digits-init-fetch-1"
    assert progress(plan.status).completed == 0


def test_step_whose_entry_was_removed_is_stopped() -> None:
    before = at(new_job(init=[FETCH]))
    job = new_job().model_copy(update={"status": before.status})
    plan = plan_of(job, pod_of(before))
    assert [a.name for a in only(plan.actions, DeletePod)] == ["digits-init-fetch-1"]
    assert plan.status.attempt == 1


def test_deadline_of_the_job_counts_the_steps() -> None:
    job = at(new_job(init=[FETCH], activeDeadlineSeconds=60))
    plan = plan_of(job, pod_of(job), now=after(61))
    assert summary(plan.status)[:2] == ("False", "Failed")
    assert "activeDeadlineSeconds (60)" in summary(plan.status)[2]
    finished = with_status(job, **dict(plan.status))
    ending = plan_of(finished, pod_of(job), now=after(62))
    assert [a.name for a in only(ending.actions, DeletePod)] == ["digits-init-fetch-1"]


def test_refused_pod_is_reported() -> None:
    job = at(new_job(init=[FETCH]))
    plan = plan_of(job, blocked='pods "digits-init-fetch-1" is forbidden: exceeded quota: a')
    assert summary(plan.status)[1] == "Pending"
    assert "exceeded quota" in summary(plan.status)[2]


def test_time_of_a_running_step_counts_as_starting() -> None:
    job = at(new_job(init=[FETCH]))
    running = with_status(job, **dict(plan_of(job, pod_of(job)).status))
    plan = plan_of(running, pod_of(job, phase="Succeeded", termination=ended(0)), now=after(9))
    assert plan.status.goodput is not None
    assert getattr(plan.status.goodput, Bucket.STARTING.field) == 9000


def test_only_the_newest_tries_of_a_step_keep_their_pods() -> None:
    job = at(new_job(init=STEPS), 1, tries=3, failures=2)
    ended_tries = [
        pod_of(at(job, 1, tries=number), phase="Failed", termination=ended(1)) for number in (1, 2)
    ]
    first = pod_of(at(job), phase="Succeeded", termination=ended(0))
    plan = plan_of(job, first, *ended_tries)
    assert [action.name for action in only(plan.actions, DeletePod)] == ["digits-init-convert-1"]
