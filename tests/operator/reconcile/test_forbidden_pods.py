"""Jobs whose pods the podTemplate policy forbids: the status names the field, no pod is created."""

from dataclasses import replace
from typing import Any

import pytest

from ddp_operator.api.job import DDPJob
from ddp_operator.api.pod_policy import PodTemplatePolicy
from ddp_operator.api.status import ConditionType
from ddp_operator.reconcile.decide import decide
from ddp_operator.reconcile.plan import CreatePod, Plan
from tests.operator.support import (
    DEFAULTS,
    active_job,
    all_pods,
    finished_job,
    new_job,
    world,
)

HOST: dict[str, Any] = {"podTemplate": {"spec": {"hostNetwork": True}}}
FULL = replace(DEFAULTS, pod_template=PodTemplatePolicy.FULL)
SENTENCE = (
    "spec.podTemplate.spec.hostNetwork: must not be set, because the podTemplate policy of this"
    " installation is scheduling"
)


def summary(plan: Plan) -> tuple[str, str]:
    found = plan.status.condition(ConditionType.SUCCEEDED)
    assert found is not None
    return found.reason, found.message


def test_new_job_that_the_policy_forbids_is_reported_once_and_gets_no_pods() -> None:
    job = new_job(**HOST)
    plan = decide(world(job), DEFAULTS)
    assert summary(plan) == ("Invalid", SENTENCE)
    assert [(e.reason, e.message) for e in plan.events] == [("Invalid", SENTENCE)]
    assert (plan.actions, plan.status.attempt) == ((), 0)
    again = decide(world(job.model_copy(update={"status": plan.status})), DEFAULTS)
    assert again == Plan(plan.status)


def test_job_starts_when_the_policy_allows_it() -> None:
    job = new_job(**HOST)
    reported = decide(world(job), DEFAULTS).status
    plan = decide(world(job.model_copy(update={"status": reported})), FULL)
    assert summary(plan)[0] == "Pending"
    assert any(isinstance(action, CreatePod) for action in plan.actions)


def test_edit_that_the_policy_forbids_leaves_the_running_attempt_alone() -> None:
    running = active_job()
    edited = new_job(nodes=2, **HOST).model_copy(update={"status": running.status})
    plan = decide(world(edited, all_pods(running)), DEFAULTS)
    assert summary(plan) == ("Invalid", SENTENCE)
    assert (plan.actions, plan.status.attempt) == ((), 1)


def test_attempt_older_than_the_policy_continues_but_gets_no_new_pods() -> None:
    job = active_job(**HOST)
    pods = all_pods(job)
    assert summary_or_none(decide(world(job, pods), DEFAULTS)) != "Invalid"
    lost = decide(world(job, pods[:1]), DEFAULTS)
    assert summary(lost) == ("Invalid", SENTENCE)
    assert lost.actions == ()


def summary_or_none(plan: Plan) -> str | None:
    found = plan.status.condition(ConditionType.SUCCEEDED)
    return None if found is None else found.reason


@pytest.mark.parametrize(
    "job", [finished_job(succeeded=True, **HOST), active_job(suspend=True, **HOST)]
)
def test_finished_or_suspended_job_is_not_reported_as_forbidden(job: DDPJob) -> None:
    assert summary_or_none(decide(world(job, all_pods(job)), DEFAULTS)) != "Invalid"
