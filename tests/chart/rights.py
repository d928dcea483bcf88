"""Compare the rights that a ServiceAccount used, by the audit log, with those that it has."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

JSON = Mapping[str, Any]


@dataclass(frozen=True, order=True)
class Right:
    """One verb on one resource, in any namespace."""

    group: str
    """API group; empty for the core group."""
    resource: str
    """Resource, with its subresource after a slash."""
    verb: str


def used_rights(entries: Iterable[JSON], user: str) -> set[Right]:
    """Return the rights that a user needed for the requests of an audit log.

    Requests without a resource are left out: every user may discover the API.
    """
    return {
        Right(reference.get("apiGroup", ""), _resource(reference), entry["verb"])
        for entry in entries
        if entry["user"]["username"] == user and (reference := entry.get("objectRef")) is not None
    }


def _resource(reference: JSON) -> str:
    subresource = reference.get("subresource")
    return f"{reference['resource']}/{subresource}" if subresource else str(reference["resource"])


def granted_rights(manifests: Iterable[JSON], namespace: str, account: str) -> set[Right]:
    """Return the rights that roles and bindings in these manifests give to a ServiceAccount."""
    documents = list(manifests)
    subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    bound = {
        (d["roleRef"]["kind"], d["roleRef"]["name"])
        for d in documents
        if d["kind"] in {"RoleBinding", "ClusterRoleBinding"} and subject in d["subjects"]
    }
    return {
        Right(group, resource, verb)
        for d in documents
        if (d["kind"], d["metadata"]["name"]) in bound
        for rule in d["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
