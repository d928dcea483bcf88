"""Compare the claim of a job's checkpoints with its template, and report why the claim waits.

`children` creates a missing claim. This module changes an existing one: its size, which may only
grow, and its owner, which is the job only with the retention Delete. The API server refuses a
larger size if the storage class does not allow it. The operator then reports the refusal, and tries
again only after an edit or after a restart of its process.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ddp_operator.api.status import ConditionType
from ddp_operator.builders.claim import build_claim
from ddp_operator.builders.gangs.quantities import amount
from ddp_operator.reconcile.plan import PatchClaim
from ddp_operator.reconcile.world import World

CLAIM = "PersistentVolumeClaim"
NOT_THE_JOBS = "set checkpoint.claimName to use it"
"""End of the error about a claim with the name of the template's claim that another user made."""
_BOUND = "Bound"


@dataclass(frozen=True)
class ClaimReport:
    """Value, reason and message of the condition ClaimBound."""

    bound: bool
    reason: str
    message: str


def existing_claim(world: World) -> Mapping[str, Any] | None:
    """Return the claim that the operator created for a job's template, or None."""
    wanted = build_claim(world.job)
    if wanted is None:
        return None
    name = wanted["metadata"]["name"]
    found = world.children.get(CLAIM, ())
    return next((claim for claim in found if claim["metadata"]["name"] == name), None)


def change_claim(world: World) -> list[PatchClaim]:
    """Return the action that gives an existing claim the size and the owner of its template."""
    wanted, found = build_claim(world.job), existing_claim(world)
    if wanted is None or found is None or found["metadata"].get("deletionTimestamp"):
        return []
    patch: dict[str, Any] = {}
    uid, size = world.job.metadata.uid, _size(wanted)
    owners = {owner["uid"] for owner in found["metadata"].get("ownerReferences") or []}
    references = wanted["metadata"].get("ownerReferences")
    if references and uid not in owners:
        patch["metadata"] = {"ownerReferences": references}
    elif not references and owners == {uid}:
        patch["metadata"] = {"ownerReferences": None}
    if _phase(found) == _BOUND and _is_larger(size, _size(found)):
        patch["spec"] = {"resources": {"requests": {"storage": size}}}
    refused = world.refused_claim
    if not patch or (refused is not None and refused.patch == patch):
        return []
    return [PatchClaim(found["metadata"]["name"], found["metadata"]["uid"], patch)]


def report(world: World) -> ClaimReport | None:
    """Return the state of the claim, or None for a job that never had a template."""
    wanted = build_claim(world.job)
    if wanted is None:
        known = world.job.status.condition(ConditionType.CLAIM_BOUND) is not None
        return ClaimReport(False, "NoTemplate", "the job has no claimTemplate") if known else None
    claim = f"the claim {wanted['metadata']['name']}"
    found = existing_claim(world)
    if found is None:
        if is_name_taken(world.blocked):
            return ClaimReport(False, "NameConflict", str(world.blocked))
        return ClaimReport(False, "Missing", f"{claim} does not exist yet")
    if found["metadata"].get("deletionTimestamp"):
        return ClaimReport(False, "Deleting", f"{claim} is being deleted, with its checkpoints")
    phase = _phase(found)
    if phase == _BOUND:
        return _report_bound(world, claim, found, _size(wanted))
    event = f": {world.claim_event}" if world.claim_event else ""
    if phase == "Lost":
        return ClaimReport(False, "Lost", f"{claim} has lost its volume{event}")
    return ClaimReport(False, "Pending", f"{claim} waits for its volume{event}")


def is_name_taken(blocked: str | None) -> bool:
    """Return whether an error is about a claim that exists and is not the job's."""
    return blocked is not None and blocked.endswith(NOT_THE_JOBS)


def why_it_waits(world: World) -> str | None:
    """Return why the claim is not bound, as a sentence, or None if nothing explains it."""
    found = report(world)
    if found is None or found.bound or found.reason in {"Missing", "NoTemplate"}:
        return None
    unexplained = found.reason == "Pending" and not world.claim_event
    return None if unexplained else found.message


def _report_bound(world: World, claim: str, found: Mapping[str, Any], wanted: Any) -> ClaimReport:
    requested = _size(found)
    capacity = ((found.get("status") or {}).get("capacity") or {}).get("storage", requested)
    sentence = f"{claim} is bound with {capacity}"
    refused = world.refused_claim
    if refused is not None and _is_larger(wanted, requested) and "spec" in refused.patch:
        message = f"{sentence}; it does not grow to {wanted}: {refused.message}"
        return ClaimReport(True, "GrowthRefused", message)
    if _is_larger(requested, wanted):
        sentence += f" and keeps its size, because a claim cannot shrink to {wanted}"
    elif _is_larger(wanted, capacity):
        sentence += f" and grows to {wanted}"
    return ClaimReport(True, _BOUND, sentence)


def _phase(claim: Mapping[str, Any]) -> str:
    return str((claim.get("status") or {}).get("phase") or "Pending")


def _size(claim: Mapping[str, Any]) -> Any:
    """Return the requested size of a claim, a Kubernetes quantity."""
    return claim["spec"]["resources"]["requests"]["storage"]


def _is_larger(one: Any, other: Any) -> bool:
    """Return whether a quantity is larger than another one. An unreadable one never is."""
    first, second = amount(one), amount(other)
    return first is not None and second is not None and first > second
