"""The history of one namespace: every change of its objects and every write of the operator."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.api.control_plane import OPERATOR

JSON = dict[str, Any]
_READS = {"get", "list", "watch"}


@dataclass(frozen=True)
class Change:
    """One event of a watch."""

    type: str
    """ADDED, MODIFIED or DELETED."""
    resource: str
    """Plural name of the kind, for example pods."""
    object: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Name of the object."""
        return str(self.object["metadata"]["name"])

    @property
    def version(self) -> int:
        """The resource version, which orders changes of all kinds in the cluster."""
        return int(self.object["metadata"]["resourceVersion"])

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels of the object."""
        found: Mapping[str, str] = self.object["metadata"].get("labels") or {}
        return found


@dataclass(frozen=True)
class Request:
    """One write of the operator, from the audit log."""

    verb: str
    resource: str
    """Plural name with the subresource, for example ddpjobs/status."""
    name: str
    code: int

    def __str__(self) -> str:
        return f"{self.verb} {self.resource} {self.name} ({self.code})"


@dataclass(frozen=True)
class History:
    """Changes in the order in which they were stored, and writes in the order of the audit log."""

    changes: list[Change] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)

    def of(self, resource: str) -> Iterator[Change]:
        """Return the changes of one resource."""
        return (change for change in self.changes if change.resource == resource)

    def statuses(self) -> list[JSON]:
        """Return every version of the job that has a status."""
        return [dict(change.object) for change in self.of("ddpjobs") if change.object.get("status")]

    def remaining(self, resource: str) -> dict[str, Mapping[str, Any]]:
        """Return the objects that exist at the end, by name."""
        found: dict[str, Mapping[str, Any]] = {}
        for change in self.of(resource):
            if change.type == "DELETED":
                found.pop(change.name, None)
            else:
                found[change.name] = change.object
        return found


class AuditTail:
    """The operator's writes by namespace, read from the audit log as it grows."""

    def __init__(self, log: Path) -> None:
        self._log, self._offset = log, 0
        self._requests: dict[str, list[Request]] = defaultdict(list)

    def take(self, namespace: str) -> list[Request]:
        """Return the writes in a namespace and forget them."""
        self._read()
        return self._requests.pop(namespace, [])

    def _read(self) -> None:
        user = f'"username":"{OPERATOR}"'.encode()
        with self._log.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break  # The server is still writing this line.
                self._offset += len(line)
                # Parsing is slow, and most lines are about other users.
                if user in line:
                    self._note(json.loads(line))

    def _note(self, entry: JSON) -> None:
        target = entry.get("objectRef", {})
        if entry["verb"] in _READS or "namespace" not in target:
            return
        resource = "/".join(p for p in (target["resource"], target.get("subresource")) if p)
        name, code = target.get("name", ""), entry["responseStatus"]["code"]
        self._requests[target["namespace"]].append(Request(entry["verb"], resource, name, code))
