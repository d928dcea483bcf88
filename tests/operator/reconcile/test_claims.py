"""Changes of the claim of a job's checkpoints, and the condition about it."""

from dataclasses import replace
from typing import Any

import pytest

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import ConditionStatus, ConditionType, DDPJobStatus
from ddp_operator.builders.claim import build_claim
from ddp_operator.cluster.base import Manifest
from ddp_operator.cluster.kube.used_fields import keep_used_fields
from ddp_operator.reconcile.claims import CLAIM, change_claim, report
from ddp_operator.reconcile.decide import decide
from ddp_operator.reconcile.plan import EnsureChild, PatchClaim
from ddp_operator.reconcile.world import RefusedPatch, World
from tests.operator.support import (
    DEFAULTS,
    UID,
    active_job,
    all_pods,
    condition,
    finished_job,
    new_job,
    only,
    pod,
    summary,
    with_status,
    world,
)

NAME = "digits-checkpoints"
OWNER = {"metadata": {"ownerReferences": [{"uid": UID}]}}


def template(size: str = "10Gi", **fields: Any) -> dict[str, Any]:
    return {"checkpoint": {"claimTemplate": {"size": size, **fields}}}


def claim(job: DDPJob, *, size: str = "10Gi", phase: str = "Bound", **metadata: Any) -> Manifest:
    """Return the operator's view of the claim of a job after its creation."""
    built = build_claim(job)
    assert built is not None
    built["metadata"] |= {"uid": "c", "resourceVersion": "1", **metadata}
    built["spec"]["resources"] = {"requests": {"storage": size}}
    status = {"phase": phase, **({"capacity": {"storage": size}} if phase == "Bound" else {})}
    return keep_used_fields(CLAIM, {**built, "status": status})


def seen(job: DDPJob, *claims: Manifest, **fields: Any) -> World:
    found = world(job, all_pods(job))
    return replace(found, children={**found.children, CLAIM: claims}, **fields)


def test_missing_claim_is_created_before_the_pods_and_is_kept_by_default() -> None:
    job = new_job(**template(storageClassName="nfs"))
    (made,) = [a for a in only(decide(world(job), DEFAULTS).actions, EnsureChild) if a.name == NAME]
    assert made.kind.before_pods
    assert "ownerReferences" not in made.manifest["metadata"]
    assert made.manifest["spec"] == {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "10Gi"}},
        "storageClassName": "nfs",
    }


def test_claim_is_owned_by_a_job_whose_deletion_deletes_it() -> None:
    built = build_claim(new_job(**template(whenDeleted="Delete")))
    assert built is not None
    assert [o["uid"] for o in built["metadata"]["ownerReferences"]] == [UID]


def test_existing_claim_needs_no_action() -> None:
    job = active_job(**template())
    plan = decide(seen(job, claim(job)), DEFAULTS)
    assert [a for a in plan.actions if isinstance(a, EnsureChild | PatchClaim)] == []


@pytest.mark.parametrize(
    ("wanted", "found", "phase", "grows"),
    [
        ("20Gi", "10Gi", "Bound", True),
        ("10240Mi", "10Gi", "Bound", False),
        ("5Gi", "10Gi", "Bound", False),
        ("20Gi", "10Gi", "Pending", False),
    ],
    ids=["larger", "equal", "smaller", "unbound"],
)
def test_bound_claim_grows_and_never_shrinks(
    wanted: str, found: str, phase: str, grows: bool
) -> None:
    job = active_job(**template(wanted))
    patch = {"spec": {"resources": {"requests": {"storage": wanted}}}}
    expected = [PatchClaim(NAME, "c", patch)] if grows else []
    assert change_claim(seen(job, claim(job, size=found, phase=phase))) == expected


def test_edited_retention_changes_the_owner_even_of_a_finished_job() -> None:
    kept = finished_job(succeeded=True, **template())
    deleted = finished_job(succeeded=True, **template(whenDeleted="Delete"))
    [adopt] = only(decide(seen(deleted, claim(kept)), DEFAULTS).actions, PatchClaim)
    assert [o["uid"] for o in adopt.patch["metadata"]["ownerReferences"]] == [UID]
    [release] = only(decide(seen(kept, claim(deleted)), DEFAULTS).actions, PatchClaim)
    assert release.patch == {"metadata": {"ownerReferences": None}}


def test_refused_change_is_not_repeated_until_the_template_changes() -> None:
    job = active_job(**template("20Gi"))
    [change] = change_claim(seen(job, claim(job)))
    refused = RefusedPatch(change.patch, "only dynamically provisioned pvc can be resized")
    assert change_claim(seen(job, claim(job), refused_claim=refused)) == []
    edited = active_job(**template("30Gi"))
    assert len(change_claim(seen(edited, claim(edited), refused_claim=refused))) == 1
    found = report(seen(job, claim(job), refused_claim=refused))
    assert found is not None
    assert (found.bound, found.reason) == (True, "GrowthRefused")
    assert found.message == (
        "the claim digits-checkpoints is bound with 10Gi; it does not grow to 20Gi: only"
        " dynamically provisioned pvc can be resized"
    )


@pytest.mark.parametrize(
    ("wanted", "found", "expected"),
    [
        ("10Gi", {}, (True, "Bound", "is bound with 10Gi")),
        ("20Gi", {}, (True, "Bound", "is bound with 10Gi and grows to 20Gi")),
        (
            "1Gi",
            {},
            (
                True,
                "Bound",
                "is bound with 10Gi and keeps its size, because a claim cannot shrink to 1Gi",
            ),
        ),
        ("10Gi", {"phase": "Pending"}, (False, "Pending", "waits for its volume: why")),
        ("10Gi", {"phase": "Lost"}, (False, "Lost", "has lost its volume: why")),
        (
            "10Gi",
            {"deletionTimestamp": "2026-03-01T12:00:00Z"},
            (False, "Deleting", "is being deleted, with its checkpoints"),
        ),
    ],
    ids=["bound", "growing", "too large", "pending", "lost", "deleting"],
)
def test_condition_states_the_phase_of_the_claim(
    wanted: str, found: dict[str, Any], expected: tuple[bool, str, str]
) -> None:
    job = active_job(**template(wanted))
    status = decide(seen(job, claim(job, **found), claim_event="why"), DEFAULTS).status
    shown = status.condition(ConditionType.CLAIM_BOUND)
    assert shown is not None
    bound, reason, message = expected
    assert (shown.status, shown.reason) == (ConditionStatus(str(bound)), reason)
    assert shown.message == f"the claim {NAME} {message}"


def waiting(event: str | None) -> DDPJobStatus:
    """Return the status of a job whose only pod waits for its claim."""
    job = active_job(nodes=1, formed=False, **template())
    why = "Unschedulable: pod has unbound immediate PersistentVolumeClaims"
    stuck = pod(job, phase="Pending", ready=False, node=None, waiting=why)
    found = replace(seen(job, claim(job, phase="Pending"), claim_event=event), pods=(stuck,))
    return decide(found, DEFAULTS).status


def test_message_quotes_the_event_of_a_claim_that_waits() -> None:
    shown = waiting("ProvisioningFailed: no quota")
    assert summary(shown)[1] == "Pending"
    assert summary(shown)[2] == (
        "digits-0 waits: Unschedulable: pod has unbound immediate PersistentVolumeClaims; the"
        " claim digits-checkpoints waits for its volume: ProvisioningFailed: no quota"
    )
    assert "the claim" not in summary(waiting(None))[2]


def test_claim_of_another_user_makes_the_job_invalid() -> None:
    taken = (
        "PersistentVolumeClaim digits-checkpoints exists already and is not this job's: delete it,"
        " or set checkpoint.claimName to use it"
    )
    job = active_job(formed=False, **template())
    status = decide(world(job, blocked=taken), DEFAULTS).status
    assert summary(status)[1:] == ("Invalid", taken)
    shown = status.condition(ConditionType.CLAIM_BOUND)
    assert shown is not None
    assert (shown.reason, shown.message) == ("NameConflict", taken)


def test_template_that_the_settings_forbid_is_invalid() -> None:
    job = new_job(**template())
    plan = decide(world(job), replace(DEFAULTS, checkpoint_claims=False))
    assert summary(plan.status)[1] == "Invalid"
    assert summary(plan.status)[2] == (
        "spec.checkpoint.claimTemplate: must not be set, because checkpointClaims of the chart is"
        " false; name an existing claim in claimName"
    )
    assert plan.actions == ()


def test_size_and_retention_start_no_new_attempt() -> None:
    job = new_job(**template())
    assert new_job(**template("20Gi", whenDeleted="Delete")).spec_hash == job.spec_hash
    assert new_job(checkpoint={"claimName": NAME}).spec_hash != job.spec_hash


def test_job_that_now_names_its_claim_has_no_stale_condition() -> None:
    job = active_job(checkpoint={"claimName": "shared"})
    bound = condition(ConditionType.CLAIM_BOUND, "True", "Bound")
    job = with_status(job, conditions=[*job.status.conditions, bound])
    found = report(world(job, all_pods(job)))
    assert found is not None
    assert (found.bound, found.reason) == (False, "NoTemplate")
