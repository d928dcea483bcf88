"""Rules that hold under every gang scheduler, for random states of the pods.

A plan is applied as the API server would apply it: a deletion without a grace period and one of an
ended pod remove the object, unless a finalizer keeps it. Another deletion leaves the pod running.
"""

from collections import Counter
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ddp_operator.api.job import DDPJob
from ddp_operator.builders.gangs.schedulers import recorded_gang
from ddp_operator.builders.gangs.versions import row_of
from ddp_operator.reconcile.children import fresh_pods
from ddp_operator.reconcile.decide import decide
from ddp_operator.reconcile.plan import CreatePod, DeleteChild, DeletePod, EnsureChild, Plan
from ddp_operator.reconcile.pod_view import PodView
from ddp_operator.reconcile.world import World
from tests.operator.reconcile.test_gangs import OFFERED, VERSIONS
from tests.operator.support import NOW, active_job, ended, only, pod, with_status

OLD, NOW_GROUP, NEXT = "digits-1", "digits-2", "digits-3"
"""Group objects of a former spec, of the current attempt and of the next attempt."""
LEAVING: dict[str, Any] = {"deleting": True, "grace": timedelta(seconds=60)}
STATES: dict[str, dict[str, Any] | None] = {
    "absent": None,
    "pending": {"phase": "Pending", "ready": False, "node": None},
    "running": {},
    "of an earlier attempt": {"attempt": "1"},
    "of a former spec": {"spec_hash": "other", "gang_group": OLD, "attempt": "1"},
    "failed": {"phase": "Failed", "termination": ended(1)},
    "failed earlier": {"phase": "Failed", "attempt": "1", "termination": ended(1)},
    "succeeded": {"phase": "Succeeded", "termination": ended(0)},
    "held by a finalizer": {
        "phase": "Failed",
        "attempt": "1",
        "finalizers": ("queue",),
        **LEAVING,
    },
    "ends beside a sidecar": {
        "phase": "Failed",
        "attempt": "1",
        "termination": ended(1),
        "lingers": True,
    },
    "is being deleted": LEAVING,
    "of a lost node": {**LEAVING, "uid": "lost"},
    "preempted": {**LEAVING, "disruption": "PreemptionByScheduler"},
}

SURPLUS = ["absent", "of a former spec"]


@dataclass(frozen=True)
class Scene:
    """An observed state and the plan for it."""

    job: DDPJob
    world: World
    plan: Plan


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    """Return a scene with pods in random states, under a random gang scheduler."""
    gang = draw(st.sampled_from(list(VERSIONS)))
    spec: dict[str, Any] = {
        "nodes": draw(st.sampled_from([2, 3])),
        "gang": {"type": gang},
        "suspend": draw(st.sampled_from([False, False, True])),
    }
    job = active_job(attempt=2, formed=draw(st.booleans()), **spec)
    wished = draw(st.sampled_from([job.spec.nodes, 3]))
    shared = fresh_pods(with_status(job, attempt=1), OFFERED)
    assert shared.gang is not None
    group = shared.gang.model_copy(update={"size": wished})
    changed = draw(st.booleans())
    hashes = {"attempt_spec_hash": "other"} if changed else {}
    job = with_status(
        job, pods=shared.model_copy(update={"nodes": wished, "gang": group}), **hashes
    )
    pods = tuple(
        # A new size takes a new group, so pods beyond it are of a former spec.
        _pod(job, index, draw(st.sampled_from(list(STATES) if index < wished else SURPLUS)))
        for index in range(4)
    )
    present = tuple(one for one in pods if one is not None)
    groups = draw(st.sets(st.sampled_from([OLD, NOW_GROUP])))
    world = World(
        job=job,
        now=NOW,
        pods=present,
        children={row_of(VERSIONS[gang]): [_group(job, name) for name in sorted(groups)]},
        deleting_for={p.uid: timedelta(seconds=200 if p.uid == "lost" else 1) for p in present},
        undecided_for=timedelta(seconds=3),
    )
    return Scene(job, world, decide(world, OFFERED))


def _pod(job: DDPJob, index: int, state: str) -> PodView | None:
    fields = STATES[state]
    if fields is None:
        return None
    given = {"gang_group": NOW_GROUP, "native_group": NOW_GROUP, **fields}
    if given.get("uid") == "lost" and index:
        given.pop("uid")
    return pod(job, index, **given)


def _group(job: DDPJob, name: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": f"uid-{name}"}, "spec": {"minMember": job.nodes}}


def apply(scene: Scene) -> dict[str, PodView]:
    """Return the pods by name after the plan. A creation replaces no pod that still exists."""
    objects = {one.name: one for one in scene.world.pods}
    for deletion in only(scene.plan.actions, DeletePod):
        found = objects[deletion.name]
        if found.finalizers:
            continue
        if deletion.grace_seconds == 0 or (found.terminal and not found.lingers):
            del objects[deletion.name]
    job = scene.job.model_copy(update={"status": scene.plan.status})
    for creation in only(scene.plan.actions, CreatePod):
        if creation.name in objects:
            continue  # The API server refuses a second pod of that name.
        gang = recorded_gang(job)
        assert gang is not None
        objects[creation.name] = pod(job, creation.index, gang_group=gang.group)
    return objects


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(scenes())
def test_no_group_object_has_more_living_pods_than_its_size(scene: Scene) -> None:
    """More pods than the size may exist before the plan, but the plan adds none to them."""
    size = scene.job.model_copy(update={"status": scene.plan.status}).nodes
    before = Counter(one.gang_group for one in scene.world.pods if not one.terminal)
    after = Counter(one.gang_group for one in apply(scene).values() if not one.terminal)
    for group, members in after.items():
        assert members <= max(size, before[group])


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(scenes())
def test_no_pod_is_replaced_before_it_has_ended_or_is_gone(scene: Scene) -> None:
    deleted = {d.name: d for d in only(scene.plan.actions, DeletePod)}
    for creation in only(scene.plan.actions, CreatePod):
        for one in scene.world.pods:
            if one.index != creation.index:
                continue
            deletion = deleted.get(one.name)
            gone = deletion is not None and deletion.grace_seconds == 0 and not one.finalizers
            assert gone, f"{creation.name} is created beside {one}"
            assert not one.lingers


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(scenes())
def test_group_object_is_created_before_its_pods_and_deleted_after_them(scene: Scene) -> None:
    gang = recorded_gang(scene.job.model_copy(update={"status": scene.plan.status}))
    assert gang is not None
    row = row_of(gang.api_version)
    existing = {one["metadata"]["name"] for one in scene.world.children[row]}
    ensured = {one.name for one in only(scene.plan.actions, EnsureChild)}
    if only(scene.plan.actions, CreatePod):
        assert gang.group in existing | ensured
        assert gang.group in {NOW_GROUP, NEXT}
    living = {one.gang_group for one in scene.world.pods if not one.terminal}
    for deletion in only(scene.plan.actions, DeleteChild):
        assert deletion.name not in living
        assert deletion.name != gang.group or scene.job.spec.suspend


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(scenes())
def test_pods_of_a_plan_do_not_depend_on_the_gang_scheduler(scene: Scene) -> None:
    """The pods of a plan are the same as those without a gang: only the group objects differ."""
    pods = scene.job.status.pods
    assert pods is not None
    spec = scene.job.spec.model_copy(update={"gang": None})
    job = scene.job.model_copy(update={"spec": spec})
    old_hash, new_hash = scene.job.spec_hash, job.spec_hash
    # After a change of the spec, pods of the former gang are replaced even if they have its hash.
    assume(job.status.attempt_spec_hash == old_hash)
    job = with_status(job, pods=pods.model_copy(update={"gang": None}), attempt_spec_hash=new_hash)
    views = tuple(
        replace(p, spec_hash=new_hash if p.spec_hash == old_hash else p.spec_hash, gang_group="")
        for p in scene.world.pods
    )
    plain = decide(replace(scene.world, job=job, pods=views, children={}), OFFERED)

    def pod_actions(plan: Plan) -> list[tuple[type[Any], str]]:
        others = (EnsureChild, DeleteChild)
        return [
            (type(a), getattr(a, "name", "")) for a in plan.actions if not isinstance(a, others)
        ]

    assert pod_actions(plain) == pod_actions(scene.plan)
