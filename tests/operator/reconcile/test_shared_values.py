"""Values that all pods of an attempt share: an upgrade or a resize never mixes two gangs."""

from datetime import timedelta
from typing import Any

import pytest

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.builders.defaults import Defaults
from ddp_operator.reconcile.decide import decide
from ddp_operator.reconcile.plan import Action, CreatePod, DeletePod
from tests.operator.support import (
    DEFAULTS,
    active_job,
    agent_status,
    all_pods,
    failed_status,
    new_job,
    only,
    plan_for,
    pod,
    with_status,
    world,
)

UPGRADED = Defaults(image="registry.example/ddp-trainer:2", image_pull_policy="Always")


def images(actions: tuple[Action, ...]) -> list[tuple[str, str]]:
    containers = [a.manifest["spec"]["containers"][0] for a in only(actions, CreatePod)]
    return [(c["image"], c["imagePullPolicy"]) for c in containers]


def created(actions: tuple[Action, ...]) -> list[str]:
    return [a.manifest["metadata"]["name"] for a in only(actions, CreatePod)]


def test_first_attempt_records_what_its_pods_share() -> None:
    shared = plan_for(new_job(nodes=3)).status.pods
    assert shared is not None
    assert (shared.nodes, shared.image) == (3, DEFAULTS.image)
    own = plan_for(new_job(image="mine:1", imagePullPolicy="Never")).status.pods
    assert own is not None
    assert (own.image, own.image_pull_policy) == ("mine:1", "Never")


@pytest.mark.parametrize("recorded", [True, False], ids=["recorded", "of an older operator"])
def test_pod_replaced_after_an_upgrade_gets_the_image_of_its_peers(recorded: bool) -> None:
    """Ranks of two trainer versions may have different settings, and the preflight would fail."""
    job = active_job(status={} if recorded else {"pods": None})
    seen = world(job, [pod(job, 0, image=DEFAULTS.image)], statuses={0: agent_status(0)})
    plan = decide(seen, UPGRADED)
    assert plan.status.attempt == 2
    assert images(plan.actions) == [(DEFAULTS.image, "IfNotPresent" if recorded else "Always")]
    assert (plan.status.pods is not None) is recorded


def test_attempt_in_which_all_pods_are_replaced_together_gets_the_new_image() -> None:
    job = active_job()
    edited = new_job(nodes=2, config={"epochs": 3}).model_copy(update={"status": job.status})
    plan = decide(world(edited, []), UPGRADED)
    assert plan.status.pods is not None
    assert plan.status.pods.image == UPGRADED.image
    assert images(plan.actions) == [(UPGRADED.image, "Always")] * 2


def resized(job: DDPJob, nodes: int) -> DDPJob:
    return new_job(nodes=nodes).model_copy(update={"status": job.status})


def test_size_of_an_attempt_is_the_recorded_size() -> None:
    """The API server shows the new spec before the operator has acted on it."""
    job = resized(active_job(nodes=2), 3)
    assert job.nodes == 2
    assert plan_for(job, all_pods(active_job(nodes=2))).status.pods == with_nodes(3)


def with_nodes(nodes: int) -> Any:
    return plan_for(new_job(nodes=nodes)).status.pods


@pytest.mark.parametrize("recorded", [True, False], ids=["recorded", "of an older operator"])
def test_resize_creates_no_pod_for_a_node_whose_old_pod_still_lives(recorded: bool) -> None:
    old = active_job(nodes=10 if recorded else 11, status={} if recorded else {"pods": None})
    job = resized(old, 12)
    living = all_pods(old)
    first = plan_for(job, living)
    assert {a.name for a in only(first.actions, DeletePod)} == {one.name for one in living}
    missing = {f"digits-{index}" for index in range(len(living), 12)}
    assert set(created(first.actions)) == missing
    job = job.model_copy(update={"status": first.status})
    later = plan_for(job, [one for one in living if one.index != 3])
    assert set(created(later.actions)) == {*missing, "digits-3"}


def abandoned(attempt: str) -> dict[str, Any]:
    return {"deleting": True, "attempt": attempt, "grace": timedelta(seconds=60)}


@pytest.mark.parametrize(("ordered", "attempt"), [("2", 3), ("1", 2)])
def test_pod_created_after_a_forced_deletion_gets_a_new_attempt_number(
    ordered: str, attempt: int
) -> None:
    """The old container may still run, and the fence distinguishes containers by attempt."""
    job = active_job(nodes=1, attempt=2, formed=False)
    plan = plan_for(job, [pod(job, 0, **abandoned(ordered))], deleting=100)
    assert plan.status.attempt == attempt
    (new,) = only(plan.actions, CreatePod)
    assert new.manifest["metadata"]["annotations"]["ddp-trainer.dev/attempt"] == str(attempt)
    assert [a.grace_seconds for a in only(plan.actions, DeletePod)] == [0]


def test_attempt_after_a_fault_keeps_the_record() -> None:
    job = active_job()
    status: DDPJobStatus = plan_for(job, all_pods(job), statuses={0: failed_status(0)}).status
    assert status.pods == job.status.pods
    assert with_status(job, pods=None).nodes == job.spec.nodes


def secrets(plan_actions: tuple[Action, ...]) -> list[str | None]:
    return [action.job_secret for action in only(plan_actions, CreatePod)]


def test_pods_of_a_new_job_share_a_new_secret() -> None:
    assert secrets(plan_for(new_job(nodes=2)).actions) == [None, None]


@pytest.mark.parametrize("secret", ["s" * 32, ""], ids=["secret", "pods of an older operator"])
def test_new_pod_shares_the_secret_of_the_living_ones(secret: str) -> None:
    job = active_job(nodes=3)
    seen = world(job, [pod(job, i, job_secret=secret) for i in (1, 2)], statuses={})
    assert secrets(decide(seen, DEFAULTS).actions) == [secret]


def test_new_pod_takes_no_secret_from_dead_or_deleted_pods() -> None:
    """Pods of an older operator have no secret. The next pods then get a new one."""
    job = active_job(nodes=2)
    gone = [pod(job, 0, phase="Failed", attempt="0"), pod(job, 1, deleting=True)]
    assert secrets(decide(world(job, gone, statuses={}), DEFAULTS).actions) == [None]


@pytest.mark.parametrize("other", ["o" * 32, ""], ids=["other secret", "pod of an older operator"])
def test_pod_with_another_secret_is_replaced_because_it_could_never_meet_its_peers(
    other: str,
) -> None:
    job = active_job(nodes=3, formed=False)
    pods = [pod(job, i, job_secret=secret) for i, secret in enumerate(("s" * 32, other, "s" * 32))]
    actions = decide(world(job, pods, statuses={}), DEFAULTS).actions
    assert [action.name for action in only(actions, DeletePod)] == ["digits-1"]
