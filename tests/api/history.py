"""What happened in one namespace: every change of its objects, and every write of the operator."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.api.plane import OPERATOR

JSON = dict[str, Any]
_READS = {"get", "list", "watch"}


@dataclass(frozen=True)
class Change:
    """One event of a watch."""

    type: str
    """ADDED, MODIFIED or DELETED."""
    resource: str
    """Plural of its kind, as pods."""
    object: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Name of the object."""
        return str(self.object["metadata"]["name"])

    @property
    def version(self) -> int:
        """The revision of the whole cluster's state that it made."""
        return int(self.object["metadata"]["resourceVersion"])

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels of the object."""
        found: Mapping[str, str] = self.object["metadata"].get("labels") or {}
        return found


@dataclass(frozen=True)
class Request:
    """One write of the operator, as the audit log has it."""

    verb: str
    resource: str
    """Plural and part, as ddpjobs/status."""
    name: str
    code: int

    def __str__(self) -> str:
        return f"{self.verb} {self.resource} {self.name} ({self.code})"


@dataclass(frozen=True)
class History:
    """Changes in the order in which they became true, and writes in theirs."""

    changes: list[Change] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)

    def of(self, resource: str) -> Iterator[Change]:
        """Changes of one resource."""
        return (change for change in self.changes if change.resource == resource)

    def statuses(self) -> list[JSON]:
        """Every job with a status, as it was between two changes."""
        return [dict(change.object) for change in self.of("ddpjobs") if change.object.get("status")]

    def left(self, resource: str) -> dict[str, Mapping[str, Any]]:
        """The objects that are there at the end, by name."""
        found: dict[str, Mapping[str, Any]] = {}
        for change in self.of(resource):
            if change.type == "DELETED":
                found.pop(change.name, None)
            else:
                found[change.name] = change.object
        return found


class AuditTail:
    """The operator's writes by namespace; reads on where it stopped."""

    def __init__(self, log: Path) -> None:
        self._log, self._offset = log, 0
        self._requests: dict[str, list[Request]] = defaultdict(list)

    def take(self, namespace: str) -> list[Request]:
        """The writes in a namespace, which are then forgotten."""
        self._read()
        return self._requests.pop(namespace, [])

    def _read(self) -> None:
        user = f'"username":"{OPERATOR}"'.encode()
        with self._log.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break  # The server is about to write the rest.
                self._offset += len(line)
                # Most lines are other users': they are not worth parsing.
                if user in line:
                    self._note(json.loads(line))

    def _note(self, entry: JSON) -> None:
        target = entry.get("objectRef", {})
        if entry["verb"] in _READS or "namespace" not in target:
            return
        resource = "/".join(p for p in (target["resource"], target.get("subresource")) if p)
        name, code = target.get("name", ""), entry["responseStatus"]["code"]
        self._requests[target["namespace"]].append(Request(entry["verb"], resource, name, code))
