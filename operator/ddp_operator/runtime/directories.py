"""Index jobs by their checkpoint directory, and select the job that owns each directory."""

from collections.abc import Callable
from dataclasses import dataclass

from ddp_operator.builders.env import unique_path
from ddp_operator.builders.names import made_claim_name
from ddp_operator.cluster.base import Key, Manifest
from ddp_operator.reconcile.checkpoint_owner import Claimant, first_in_line
from ddp_operator.reconcile.conditions import INVALID

_Directory = tuple[str, str]
"""Namespace of the claim, and the directory as CLAIM/PATH."""


@dataclass(frozen=True)
class _DirectoryClaim:
    """Claim of an unfinished job on a checkpoint directory."""

    directory: _Directory
    claimant: Claimant
    can_own: bool
    """Whether the job has used the directory, or could start now."""


class Directories:
    """Index of the jobs that use, or want to use, the same checkpoint directory.

    The selected owner of a directory stays the owner until it ends or names another directory. So
    two workers that decide about two jobs at the same time agree on the owner. After a restart of
    the operator, the status names the directory of a started job.
    """

    def __init__(self) -> None:
        """Create an empty index."""
        self.on_release: Callable[[Key], None] = lambda _: None
        """Function to call with the key of the next owner when the owner of a directory has
        ended."""
        self._claims: dict[Key, _DirectoryClaim] = {}
        self._claimants: dict[_Directory, dict[str, Claimant]] = {}
        """Claimants that can own a directory, by uid."""
        self._owners: dict[_Directory, str] = {}
        """Uids of the owners that were found."""

    def put(self, key: Key, job: Manifest) -> None:
        """Store the claim of a new or changed job."""
        known, claim = self._claims.get(key), _claim_of(job)
        if claim == known:
            return
        self._claims.pop(key, None)
        if claim is not None:
            self._claims[key] = claim
            if claim.can_own:
                of_directory = self._claimants.setdefault(claim.directory, {})
                of_directory[claim.claimant.uid] = claim.claimant
        if known is not None and not _continues(known, claim):
            self._release(known)

    def drop(self, key: Key) -> None:
        """Remove the claim of a job that no longer exists."""
        known = self._claims.pop(key, None)
        if known is not None:
            self._release(known)

    def owner(self, key: Key) -> str | None:
        """Return the name of the job that owns this job's directory, or None if it is free."""
        claim = self._claims.get(key)
        if claim is None:
            return None
        claimants = self._claimants.get(claim.directory, {})
        found = self._owners.get(claim.directory)
        if found is not None:
            owner = claimants[found]
        else:
            owner = first_in_line([*claimants.values(), claim.claimant])
            if owner.uid in claimants:
                self._owners[claim.directory] = owner.uid
        return None if owner.uid == claim.claimant.uid else owner.name

    def _release(self, claim: _DirectoryClaim) -> None:
        directory, uid = claim.directory, claim.claimant.uid
        claimants = self._claimants.get(directory, {})
        claimants.pop(uid, None)
        if not claimants:
            self._claimants.pop(directory, None)
        if self._owners.get(directory) != uid:
            return
        del self._owners[directory]
        if claimants:
            self.on_release((directory[0], first_in_line(claimants.values()).name))


def _continues(known: _DirectoryClaim, claim: _DirectoryClaim | None) -> bool:
    """Return whether a changed job still claims the same directory."""
    if claim is None or not claim.can_own:
        return False
    return (claim.directory, claim.claimant.uid) == (known.directory, known.claimant.uid)


def _claim_of(job: Manifest) -> _DirectoryClaim | None:
    """Return the claim of a job, or None if the job has finished or has no checkpoints."""
    try:
        return _read_claim(job)
    except (AttributeError, LookupError, TypeError):
        return None  # An older CRD may have allowed it. The job is Invalid and gets no pods.


def _read_claim(job: Manifest) -> _DirectoryClaim | None:
    metadata, spec, status = job["metadata"], job["spec"], job.get("status") or {}
    checkpoint = spec.get("checkpoint")
    conditions = status.get("conditions") or []
    summary: Manifest = next((c for c in conditions if c["type"] == "Succeeded"), {})
    if not checkpoint or summary.get("status") in {"True", "False"}:
        return None
    name, uid = metadata["name"], metadata["uid"]
    claim = checkpoint["claimName"] if "claimTemplate" not in checkpoint else made_claim_name(name)
    path = f"{claim}/{checkpoint.get('path') or unique_path(name, uid)}"
    started = (status.get("pods") or {}).get("checkpointDirectory") == path
    invalid = summary.get("reason") == INVALID
    if summary.get("observedGeneration") != metadata.get("generation"):
        invalid = False  # An edit may have mended it.
    stopped = spec.get("suspend") or invalid or metadata.get("deletionTimestamp") is not None
    claimant = Claimant(name, uid, metadata.get("creationTimestamp") or "", started)
    return _DirectoryClaim((metadata["namespace"], path), claimant, started or not stopped)
