"""Tests that a moved tag mixes no images in one gang, and that mixed images are reported."""

from typing import Any

import pytest

from ddp_operator.reconcile import children
from ddp_operator.reconcile.decide import decide
from ddp_operator.reconcile.plan import CreatePod, Plan
from ddp_operator.reconcile.pod_view import view_pod
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
    world,
)

OLD = f"registry.example/ddp-trainer@sha256:{'a' * 64}"
NEW = f"registry.example/ddp-trainer@sha256:{'b' * 64}"
TAGGED = {"image": DEFAULTS.image, "image_by_digest": OLD}


def images(plan: Plan) -> list[str]:
    created = [action.manifest for action in only(plan.actions, CreatePod)]
    return [manifest["spec"]["containers"][0]["image"] for manifest in created]


def replaced(**spec: Any) -> Plan:
    """Return the plan after node 1 of three nodes has lost its pod."""
    job = active_job(nodes=3, **spec)
    pods = [
        pod(job, i, image=spec.get("image", DEFAULTS.image), image_by_digest=OLD) for i in (0, 2)
    ]
    return decide(world(job, pods, statuses={0: agent_status(0), 2: agent_status(2)}), DEFAULTS)


@pytest.mark.parametrize("spec", [{}, {"image": "registry.example/ddp-trainer:latest"}])
def test_replaced_pod_runs_the_image_of_its_peers_although_the_tag_has_moved(
    spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert images(replaced(**spec)) == [OLD]
    monkeypatch.setattr(children, "pinned_image", lambda *_: None)
    assert images(replaced(**spec)) == [spec.get("image", DEFAULTS.image)], "without protection"


def test_pods_that_start_together_pull_the_tag() -> None:
    assert images(plan_for(new_job(nodes=2))) == [DEFAULTS.image] * 2


def test_new_spec_pulls_the_tag_again() -> None:
    old = active_job()
    edited = new_job(nodes=2, config={"epochs": 3}).model_copy(update={"status": old.status})
    first = decide(world(edited, all_pods(old, **TAGGED)), DEFAULTS)
    job = edited.model_copy(update={"status": first.status})
    assert images(decide(world(job, [pod(old, 0, deleting=True, **TAGGED)]), DEFAULTS)) == [
        DEFAULTS.image
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {"phase": "Failed", "attempt": "0"},
        {"deleting": True},
        {"image_by_digest": None},
        {
            "image": "registry.example/other:1",
            "image_by_digest": OLD.replace("ddp-trainer", "other"),
        },
    ],
    ids=["ended", "deleted", "imported", "set by podTemplate"],
)
def test_image_digest_comes_only_from_a_living_peer_with_the_same_repository(
    fields: dict[str, Any],
) -> None:
    job = active_job(nodes=2)
    peer = pod(job, 0, **(TAGGED | fields))
    created = images(decide(world(job, [peer], statuses={}), DEFAULTS))
    assert set(created) == {DEFAULTS.image}


def test_image_digest_also_comes_from_a_pod_that_was_replaced_before() -> None:
    job = active_job(nodes=2)
    peer = pod(job, 0, image=OLD, image_by_digest=OLD)
    assert images(decide(world(job, [peer], statuses={}), DEFAULTS)) == [OLD]


def test_image_by_digest_stays_as_the_user_wrote_it() -> None:
    image = f"registry.example/ddp-trainer:1@sha256:{'a' * 64}"
    assert images(replaced(image=image)) == [image]


def test_mixed_images_are_reported_once_per_attempt() -> None:
    job = active_job(nodes=3, formed=False)
    digests = enumerate((OLD, NEW, OLD))
    pods = [pod(job, i, image=DEFAULTS.image, image_by_digest=digest) for i, digest in digests]
    reports = {i: agent_status(i) for i in range(3)}
    plan = decide(world(job, pods, statuses=reports), DEFAULTS)
    (event,) = [event for event in plan.events if event.reason == "MixedImages"]
    assert event.message == (
        "the pods of attempt 1 run different images, because a tag has moved or a Kubernetes node"
        f" holds an older image: digits-0 runs {OLD}, digits-1 runs {NEW}; name the image by its"
        " digest"
    )
    job = job.model_copy(update={"status": plan.status})
    assert decide(world(job, pods, statuses=reports), DEFAULTS).events == ()


def test_mixed_images_that_appear_after_the_ranks_have_joined_are_reported() -> None:
    job = active_job(formed=False)
    reports = {i: agent_status(i) for i in range(2)}
    pods = [pod(job, i, image=DEFAULTS.image) for i in range(2)]
    first = decide(world(job, pods, statuses=reports), DEFAULTS)
    assert [event.reason for event in first.events] == ["Running"]
    job = job.model_copy(update={"status": first.status})
    digests = enumerate((OLD, NEW))
    pods = [pod(job, i, image=DEFAULTS.image, image_by_digest=digest) for i, digest in digests]
    then = decide(world(job, pods, statuses=reports), DEFAULTS)
    assert [event.reason for event in then.events] == ["MixedImages"]


def test_mixed_images_are_reported_again_in_the_next_attempt() -> None:
    job = active_job(formed=False)
    job = job.model_copy(update={"status": job.status.model_copy(update={"mixed_images": True})})
    ended = [pod(job, i, phase="Failed", **TAGGED) for i in range(2)]
    lost = decide(world(job, ended, statuses={i: failed_status(i) for i in range(2)}), DEFAULTS)
    assert lost.status.attempt == job.status.attempt + 1
    assert lost.status.mixed_images is None


def test_equal_images_are_not_reported_as_mixed() -> None:
    job = active_job(nodes=3, formed=False)
    unknown = {"image_by_digest": None}
    pods = [pod(job, i, **(TAGGED | (unknown if i == 2 else {}))) for i in range(3)]
    plan = decide(world(job, pods, statuses={i: agent_status(i) for i in range(3)}), DEFAULTS)
    assert [event.reason for event in plan.events] == ["Running"]


def test_pod_view_has_the_digest_of_the_image() -> None:
    manifest = {
        "metadata": {"name": "digits-0", "uid": "u"},
        "spec": {"containers": [{"name": "worker", "image": DEFAULTS.image}]},
        "status": {"containerStatuses": [{"name": "worker", "imageID": OLD}]},
    }
    assert view_pod(manifest).image_by_digest == OLD
