"""Read requests from the API server's audit log, from a chosen moment on."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path


@dataclass(frozen=True)
class Request:
    """One request that the API server has answered."""

    user: str
    verb: str
    resource: str
    """Resource with its subresource, for example pods/status."""
    namespace: str
    name: str
    received: float
    """Unix seconds at which the API server received the request."""
    answered: float
    """Unix seconds at which the API server had answered."""


class Audit:
    """The part of the audit log that was written after this object was created."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._offset = log.stat().st_size

    def requests(self, namespace: str) -> list[Request]:
        """Return all answered requests for objects of a namespace, except watches."""
        with self._log.open("rb") as lines:
            lines.seek(self._offset)
            needle = f'"namespace":"{namespace}"'.encode()
            entries = [json.loads(line) for line in lines if needle in line and line[-1:] == b"\n"]
        found = [_request(e) for e in entries if e["stage"] == "ResponseComplete"]
        return [one for one in found if one.namespace == namespace and one.verb != "watch"]


def _request(entry: dict[str, object]) -> Request:
    target = entry.get("objectRef") or {}
    user = entry["user"]
    assert isinstance(target, dict)
    assert isinstance(user, dict)
    parts = [target.get("resource", ""), target.get("subresource", "")]
    return Request(
        user=user["username"],
        verb=str(entry["verb"]),
        resource="/".join(part for part in parts if part),
        namespace=target.get("namespace", ""),
        name=target.get("name", ""),
        received=_seconds(entry["requestReceivedTimestamp"]),
        answered=_seconds(entry["stageTimestamp"]),
    )


def _seconds(timestamp: object) -> float:
    return datetime.fromisoformat(str(timestamp)).timestamp()


def last_pod_created(requests: Iterable[Request]) -> float:
    """Return the unix seconds at which the last pod of the requests was created."""
    return max(r.answered for r in requests if (r.verb, r.resource) == ("create", "pods"))


def last_pod_changes(requests: Iterable[Request]) -> dict[str, float]:
    """Return the unix seconds of each job's last pod status change, by the name of the job.

    The name of a pod begins with its job's name, which has no hyphen here.
    """
    changes: dict[str, float] = {}
    for request in requests:
        if request.user == "kwok" and request.resource == "pods/status":
            job = request.name.split("-")[0]
            changes[job] = max(changes.get(job, 0.0), request.answered)
    return changes


def by_verb(requests: Iterable[Request]) -> str:
    """Return the number of requests by verb and resource, as one line."""
    counts = Counter(f"{r.verb} {r.resource}" for r in requests)
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())
