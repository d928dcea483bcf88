"""Tests of gangs: group objects, the condition of a waiting gang, and evictions by a queue."""

from dataclasses import replace
from typing import Any

import pytest

from ddp_operator.api.gang import GangType
from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import Cause, ConditionType, DDPJobStatus, FailureStatus
from ddp_operator.builders.defaults import Defaults
from ddp_operator.builders.gangs import versions
from ddp_operator.builders.gangs.versions import Gangs, row_of
from ddp_operator.reconcile.children import fresh_pods
from ddp_operator.reconcile.decide import decide
from ddp_operator.reconcile.plan import CreatePod, DeleteChild, EnsureChild, Plan
from ddp_operator.reconcile.pod_view import PodView
from ddp_operator.reconcile.status_throttle import seconds_until_write
from ddp_operator.reconcile.world import World
from tests.operator.support import (
    DEFAULTS,
    NOW,
    active_job,
    condition,
    finished_job,
    new_job,
    only,
    pod,
    pod_manifest,
    reason,
    summary,
    view_of,
    with_status,
    world,
)

VERSIONS = {
    GangType.NATIVE: versions.NATIVE_1_37,
    GangType.COSCHEDULING: versions.COSCHEDULING,
    GangType.VOLCANO: versions.VOLCANO,
}
GANGS = Gangs(types=tuple(VERSIONS), served=tuple(VERSIONS.items()))
OFFERED = replace(DEFAULTS, gangs=GANGS)
"""Defaults of an installation with every gang scheduler."""


def gang_job(gang: GangType = GangType.VOLCANO, *, formed: bool = False, **spec: Any) -> DDPJob:
    """Return a job of two nodes whose first attempt has been decided on."""
    job = active_job(formed=formed, gang={"type": gang}, **spec)
    pods = fresh_pods(with_status(job, attempt=0), OFFERED)
    return with_status(job, pods=pods)


def member(job: DDPJob, index: int, **fields: Any) -> PodView:
    """Return a pod that belongs to the group of the job's first attempt."""
    marks = {"gang_group": "digits-1", "native_group": "digits-1"}
    return pod(job, index, **(marks | fields))


def group(job: DDPJob, name: str = "digits-1", **status: Any) -> dict[str, Any]:
    """Return a group object as the cache holds it."""
    metadata = {"name": name, "uid": f"uid-{name}"}
    return {"metadata": metadata, "spec": {"minMember": job.nodes}, "status": status}


def seen(job: DDPJob, *pods: PodView, groups: Any = (), **more: Any) -> World:
    """Return the observed state of a job with these pods and group objects."""
    found = world(job, pods, **more)
    gang = job.spec.gang
    assert gang is not None
    row = row_of(VERSIONS.get(gang.type, versions.VOLCANO))
    return replace(found, children={**found.children, row: list(groups)})


def plan_of(*arguments: Any, defaults: Defaults = OFFERED, **named: Any) -> Plan:
    return decide(seen(*arguments, **named), defaults)


def gang_condition(status: DDPJobStatus) -> tuple[str, str, str]:
    """Return value, reason and message of the condition GangScheduled."""
    found = status.condition(ConditionType.GANG_SCHEDULED)
    assert found is not None
    return found.status.value, found.reason, found.message


@pytest.mark.parametrize("gang", VERSIONS)
def test_group_object_is_created_with_the_first_pods_and_recorded_in_the_status(
    gang: GangType,
) -> None:
    job = new_job(nodes=2, gang={"type": gang})
    plan = plan_of(job)
    assert plan.status.pods is not None
    assert plan.status.pods.gang is not None
    assert plan.status.pods.gang.group == "digits-1"
    assert "digits-1" in [one.name for one in only(plan.actions, EnsureChild)]
    assert len(only(plan.actions, CreatePod)) == 2
    created = [one.manifest for one in only(plan.actions, CreatePod)]
    assert {p["metadata"]["annotations"]["ddp-trainer.dev/gang-group"] for p in created} == {
        "digits-1"
    }


def test_existing_group_object_causes_no_action() -> None:
    job = gang_job(formed=True)
    plan = plan_of(job, member(job, 0), member(job, 1), groups=[group(job)])
    assert plan.actions == ()


@pytest.mark.parametrize("gang", [GangType.VOLCANO, GangType.COSCHEDULING])
def test_deleted_or_changed_group_object_is_restored(gang: GangType) -> None:
    job = gang_job(gang, formed=True)
    pods = member(job, 0), member(job, 1)
    changed = {**group(job), "spec": {"minMember": 1}}
    for groups in ([], [changed]):
        [restored] = plan_of(job, *pods, groups=groups).actions
        assert isinstance(restored, EnsureChild)
        assert restored.manifest["spec"]["minMember"] == 2


def test_new_size_gets_a_new_group_and_the_old_group_ends_with_its_last_pod() -> None:
    old = gang_job(formed=True)
    job = old.model_copy(update={"spec": gang_job(nodes=3).spec})
    plan = plan_of(job, member(old, 0), member(old, 1), groups=[group(old)])
    assert plan.status.pods is not None
    assert plan.status.pods.gang is not None
    assert (plan.status.pods.nodes, plan.status.pods.gang.group) == (3, "digits-2")
    assert only(plan.actions, DeleteChild) == []
    later = with_status(job, **dict(plan.status))
    new = [pod(later, i, phase="Pending", gang_group="digits-2") for i in range(3)]
    groups = [group(old), group(later, "digits-2")]
    [deletion] = only(plan_of(later, *new, groups=groups).actions, DeleteChild)
    assert (deletion.name, deletion.uid) == ("digits-1", "uid-digits-1")
    assert deletion.kind == "PodGroup.v1beta1.scheduling.volcano.sh"


def test_group_object_that_is_being_deleted_is_left_alone() -> None:
    job = gang_job(formed=True)
    leaving = group(job, "digits-0")
    leaving["metadata"]["deletionTimestamp"] = NOW.isoformat()
    plan = plan_of(job, member(job, 0), member(job, 1), groups=[leaving, group(job)])
    assert plan.actions == ()


def test_suspended_job_deletes_its_group_object_when_its_pods_have_ended() -> None:
    job = gang_job(formed=True, suspend=True)
    groups = [group(job)]
    ending = plan_of(job, member(job, 0, deleting=True), groups=groups)
    assert only(ending.actions, DeleteChild) == []
    [deletion] = plan_of(job, groups=groups).actions
    assert isinstance(deletion, DeleteChild)
    job = with_status(job, **dict(plan_of(job, groups=groups).status))
    resumed = job.model_copy(update={"spec": gang_job().spec})
    plan = plan_of(resumed)
    assert plan.status.pods is not None
    assert plan.status.pods.gang is not None
    assert plan.status.pods.gang.group == "digits-2"


def test_finished_job_deletes_its_group_object() -> None:
    job = finished_job(succeeded=True, gang={"type": "Volcano"})
    ended = member(job, 0, phase="Succeeded")
    assert len(only(plan_of(job, ended, groups=[group(job)]).actions, DeleteChild)) == 1
    assert only(plan_of(job, member(job, 0), groups=[group(job)]).actions, DeleteChild) == []


@pytest.mark.parametrize(
    ("given", "gangs", "words"),
    [
        ("Volcano", Gangs(), "spec.gang.type: Volcano is not available: this installation offers"),
        (
            "Native",
            Gangs(types=(GangType.NATIVE,)),
            "spec.gang.type: Native is not available: the API server serves no gang scheduling",
        ),
        (
            None,
            Gangs(types=(GangType.NATIVE,), default=GangType.NATIVE),
            "gangs.default of the chart: Native is not available: the API server serves no",
        ),
    ],
)
def test_job_whose_gang_type_is_unavailable_gets_no_pods_and_one_sentence(
    given: str | None, gangs: Gangs, words: str
) -> None:
    spec: dict[str, Any] = {"gang": {"type": given}} if given else {}
    job = new_job(nodes=2, **spec)
    plan = decide(world(job), replace(DEFAULTS, gangs=gangs))
    assert plan.actions == ()
    assert reason(plan.status) == "Invalid"
    assert summary(plan.status)[2].startswith(words)
    assert [event.reason for event in plan.events] == ["Invalid"]


def test_running_job_keeps_its_pods_when_the_installation_changes_its_default() -> None:
    job = active_job()
    gangs = Gangs(types=(GangType.NATIVE,), default=GangType.NATIVE)
    plan = decide(world(job, [pod(job, 0)]), replace(DEFAULTS, gangs=gangs))
    assert reason(plan.status) != "Invalid"


def test_condition_of_a_waiting_gang_names_what_it_waits_for() -> None:
    job = gang_job()
    pods = [member(job, i, phase="Pending", ready=False, node=None, attempt="1") for i in range(2)]
    found_condition = {
        "type": "Unschedulable",
        "status": "True",
        "message": "1/2 tasks in gang unschedulable",
    }
    plan = plan_of(job, *pods, groups=[group(job, phase="Inqueue", conditions=[found_condition])])
    message = (
        "0 of 2 pods of the Volcano group digits-1 have a Kubernetes node:"
        " 1/2 tasks in gang unschedulable"
    )
    assert gang_condition(plan.status) == ("False", "WaitingForGang", message)
    assert summary(plan.status) == ("Unknown", "Pending", message)


@pytest.mark.parametrize("type_", ["PodGroupScheduled", "PodGroupInitiallyScheduled"])
def test_condition_of_a_native_gang_quotes_the_scheduler(type_: str) -> None:
    job = gang_job(GangType.NATIVE)
    pods = [member(job, i, phase="Pending", ready=False, node=None) for i in range(2)]
    found_condition = {
        "type": type_,
        "status": "False",
        "reason": "Unschedulable",
        "message": "no room",
    }
    plan = plan_of(job, *pods, groups=[group(job, conditions=[found_condition])])
    assert summary(plan.status)[2].endswith("have a Kubernetes node: no room")
    scheduled = {**found_condition, "status": "True", "message": "old news"}
    plan = plan_of(job, *pods, groups=[group(job, conditions=[scheduled])])
    assert "old news" not in summary(plan.status)[2]


def test_message_of_a_recovering_gang_has_its_pods_and_the_reason_of_the_waiting_one() -> None:
    job = gang_job(GangType.NATIVE)
    lost: dict[str, Any] = {"attempt": 1, "reason": "PodLost", "message": "digits-0 was deleted"}
    failure = FailureStatus(**lost, time=NOW, cause=Cause.INFRASTRUCTURE)
    job = with_status(job, attempt=2, last_failure=failure)
    no_room = "Unschedulable: 4 Insufficient nvidia.com/gpu"
    waits = member(job, 0, phase="Pending", ready=False, node=None, waiting=no_room, attempt="2")
    plan = plan_of(job, waits, member(job, 1, attempt="2", ready=False), groups=[group(job)])
    _, status, message = summary(plan.status)
    assert status == "Recovering"
    assert message.startswith("attempt 2 starts because digits-0 was deleted; 1 of 2 pods of the")
    assert no_room in message


def test_wait_for_a_queue_counts_against_no_deadline() -> None:
    job = gang_job(startupDeadlineSeconds=60)
    pods = [member(job, i, phase="Pending", ready=False, node=None) for i in range(2)]
    plan = plan_of(job, *pods, groups=[group(job, phase="Pending")])
    assert summary(plan.status)[2].endswith(": the queue default has not admitted it")
    assert plan.status.queue is not None
    assert plan.status.queue.since is not None
    admitted = plan_of(job, *pods, groups=[group(job, phase="Inqueue")])
    assert admitted.status.queue is None


def test_placement_of_one_pod_causes_no_early_status_write() -> None:
    job = gang_job()
    placed = member(job, 0, phase="Pending", ready=False)
    waiting = [member(job, i, phase="Pending", ready=False, node=None) for i in range(2)]
    groups = [group(job)]
    before = with_status(job, **dict(plan_of(job, *waiting, groups=groups).status))
    observed = seen(before, placed, waiting[1], groups=groups)
    plan = decide(observed, OFFERED)
    assert gang_condition(plan.status)[2].startswith("1 of 2")
    assert seconds_until_write(observed, plan, None) > 0


def test_condition_gang_scheduled_is_true_when_all_pods_have_a_node() -> None:
    job = gang_job(formed=True)
    plan = plan_of(job, member(job, 0), member(job, 1), groups=[group(job)])
    assert gang_condition(plan.status)[:2] == ("True", "Placed")


def test_job_without_a_gang_has_no_condition_gang_scheduled() -> None:
    job = active_job()
    plan = decide(world(job, [pod(job, 0), pod(job, 1)]), OFFERED)
    assert plan.status.condition(ConditionType.GANG_SCHEDULED) is None


def test_api_server_that_drops_the_gang_field_is_reported_once() -> None:
    job = gang_job(GangType.NATIVE, formed=True)
    pods = [member(job, i, native_group="") for i in range(2)]
    plan = plan_of(job, *pods, groups=[group(job)])
    value, why, message = gang_condition(plan.status)
    assert (value, why) == ("False", "FieldDropped")
    assert message == (
        "digits-0 is placed for itself, because the API server dropped its field: the feature gate"
        " GenericWorkload is off there"
    )
    assert [event.message for event in plan.events if event.reason == "GangIgnored"] == [message]
    again = plan_of(with_status(job, **dict(plan.status)), *pods, groups=[group(job)])
    assert [event.reason for event in again.events if event.reason == "GangIgnored"] == []


def test_pod_that_was_created_without_its_group_object_is_reported() -> None:
    """A new control plane may not serve the API version of the recorded group object."""
    job = gang_job(GangType.NATIVE, formed=True)
    pods = member(job, 0), member(job, 1, gang_group="", native_group="")
    newer = ((GangType.NATIVE, "scheduling.k8s.io/v9"),)
    defaults = replace(OFFERED, gangs=replace(GANGS, served=newer))
    plan = plan_of(job, *pods, defaults=defaults)
    assert gang_condition(plan.status)[1] == "NotServed"
    assert only(plan.actions, EnsureChild) == []


def test_condition_of_a_job_whose_gang_was_removed_becomes_false() -> None:
    job = active_job()
    status = condition(ConditionType.GANG_SCHEDULED, "True", "Placed")
    job = with_status(job, conditions=[*job.status.conditions, status])
    plan = decide(world(job, [pod(job, 0), pod(job, 1)]), OFFERED)
    assert gang_condition(plan.status)[:2] == ("False", "NoGang")


@pytest.mark.parametrize(
    ("condition_", "reason_", "sentence"),
    [
        (
            {
                "type": "Ready",
                "status": "False",
                "reason": "Evict",
                "message": "because of reclaim",
            },
            "Evict",
            "digits-1 was evicted by Volcano for another job or queue: because of reclaim",
        ),
        (
            {"type": "TerminationTarget", "status": "True", "message": "Preempted by a workload"},
            "TerminationTarget",
            "digits-1 was stopped by its queue: Preempted by a workload",
        ),
        (
            {
                "type": "TerminationTarget",
                "status": "True",
                "reason": "WorkloadEvicted",
                "message": "The ClusterQueue is stopped",
            },
            "TerminationTarget",
            "digits-1 was stopped by its queue: WorkloadEvicted: The ClusterQueue is stopped",
        ),
        (
            {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"},
            "PreemptionByScheduler",
            "digits-1 was preempted by a pod of higher priority",
        ),
    ],
)
def test_eviction_by_a_queue_uses_no_budget(
    condition_: dict[str, str], reason_: str, sentence: str
) -> None:
    job = gang_job(formed=True)
    manifest = pod_manifest(job, 1, conditions=[condition_])
    manifest["metadata"] |= {
        "deletionTimestamp": NOW.isoformat(),
        "deletionGracePeriodSeconds": 60,
    }
    plan = plan_of(job, member(job, 0), view_of(manifest), groups=[group(job)])
    failure = plan.status.last_failure
    assert failure is not None
    assert (failure.cause, failure.reason) == (Cause.FREE, reason_)
    assert failure.message == sentence
    assert plan.status.free_restarts == 1


def test_group_object_of_a_pod_is_read_from_the_pods_spec() -> None:
    job = gang_job(GangType.NATIVE)
    for field in (
        {"workloadRef": {"name": "digits-1", "podGroup": "workers"}},
        {"schedulingGroup": {"podGroupName": "digits-1"}},
    ):
        manifest = pod_manifest(job)
        manifest["spec"] |= field
        assert view_of(manifest).native_group == "digits-1"
    assert view_of(pod_manifest(job)).native_group == ""
