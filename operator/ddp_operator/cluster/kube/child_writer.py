"""Create the children of a job, and undo changes that other writers made to existing children."""

import asyncio
import random
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Protocol

from ddp_operator.builders.kinds import KINDS, row_name
from ddp_operator.cluster.base import (
    ClusterError,
    ConflictError,
    Manifest,
    NameTakenError,
    owner_uids,
)
from ddp_operator.cluster.kube.documents import COMPONENT, lost_fields
from ddp_operator.cluster.kube.paths import object_path
from ddp_operator.cluster.kube.used_fields import keep_used_fields
from ddp_operator.limits import CREATE_CONFLICTS, CREATE_TRIES
from ddp_operator.reconcile.claims import NOT_THE_JOBS
from ddp_wire import contract

ALREADY_EXISTS = "AlreadyExists"
_STRICT = {"fieldValidation": "Strict"}


class Call(Protocol):
    """Function that sends one request to the API server."""

    async def __call__(
        self,
        method: str,
        path: str,
        *,
        body: Manifest | None = None,
        query: Mapping[str, str] | None = None,
    ) -> Manifest:
        """Send the request and return the object in its response."""


async def create_child(
    call: Call, manifest: Manifest, on_restored: Callable[[str], None]
) -> Manifest:
    """Create a child. Return its used fields, or those of the job's existing child.

    Args:
        call: Sends one request.
        manifest: Manifest of the child.
        on_restored: Called with the name of the other writer if an existing child was restored.

    Raises:
        NameTakenError: A child with this name exists and has another owner.
        ConflictError: The existing child is being deleted, or a conflict remained.
        ClusterError: The API server refused the request.
    """
    kind, metadata = row_name(manifest), manifest["metadata"]
    path = object_path(kind, metadata["namespace"])
    conflicts = 0
    while True:
        try:
            # Without `_STRICT`, the API server drops misspelt fields of the podTemplate silently.
            created = await call("POST", path, body=manifest, query=_STRICT)
            return keep_used_fields(kind, created)
        except ConflictError as error:
            if error.reason == ALREADY_EXISTS:
                return await _adopt(call, manifest, on_restored)
            # Requests changed a ResourceQuota at the same time, so nothing was created.
            conflicts += 1
            if conflicts == CREATE_TRIES:
                raise
        await asyncio.sleep(CREATE_CONFLICTS.after(conflicts) * random.uniform(0.5, 1.0))  # noqa: S311 (jitter)


async def _adopt(call: Call, manifest: Manifest, on_restored: Callable[[str], None]) -> Manifest:
    """Return an existing child of the same job after restoring its owned fields."""
    kind, metadata = row_name(manifest), manifest["metadata"]
    path = object_path(kind, metadata["namespace"], metadata["name"])
    name = f"{manifest['kind']} {metadata['name']}"
    try:
        existing = await call("GET", path)
    except ClusterError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        raise ConflictError(
            f"{name} was deleted before it could be read", status=error.status
        ) from error
    is_leaving = bool(existing["metadata"].get("deletionTimestamp"))
    if KINDS[kind].outlives_job:
        found = existing["metadata"].get("labels") or {}
        uid = metadata["labels"][contract.LABEL_JOB_UID]
        if found.get(contract.LABEL_JOB_UID) != uid and not is_leaving:
            hint = f"delete it, or {NOT_THE_JOBS}"
            raise NameTakenError(f"{name} exists already and is not this job's: {hint}")
    elif metadata["ownerReferences"][0]["uid"] not in owner_uids(existing):
        raise NameTakenError(f"{name} exists already and is not this job's")
    if is_leaving:
        raise ConflictError(f"{name} exists and is being deleted", status=HTTPStatus.CONFLICT)
    lost = lost_fields(existing, manifest)
    if not lost:
        return keep_used_fields(kind, existing)
    # Another writer removed a label or selector by which the child is found, or a rule.
    lost.setdefault("metadata", {})["uid"] = existing["metadata"]["uid"]
    restored = await call("PATCH", path, body=lost)
    on_restored(other_writer(existing, lost))
    return keep_used_fields(kind, restored)


def other_writer(existing: Manifest, lost: Manifest) -> str:
    """Return the name of the last other writer of a child, if its managed fields show one.

    A mutating webhook leaves no entry there, because it changes objects within the operator's own
    request.
    """
    entries = [
        entry
        for entry in existing["metadata"].get("managedFields") or []
        if entry.get("manager") not in {None, COMPONENT} and not entry.get("subresource")
    ]
    wanted = {f"f:{name}" for name in lost.get("spec", {})}
    owners = [e for e in entries if wanted & (e.get("fieldsV1") or {}).get("f:spec", {}).keys()]
    newest = max(owners or entries, key=lambda entry: str(entry.get("time", "")), default=None)
    return f"{newest['manager']}" if newest else "an admission webhook or policy"
