"""Faults that the proxy injects into requests to the API server."""

import fnmatch
import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclass(frozen=True)
class Request:
    """One request, in the terms of RBAC and of the audit log."""

    at: float
    """Arrival time in monotonic seconds."""
    verb: str
    resource: str
    """Plural name with the subresource, for example ddpjobs/status."""
    namespace: str = ""
    name: str = ""

    @classmethod
    def parse(
        cls, at: float, method: str, path: str, *, watch: bool = False, body: bytes = b""
    ) -> "Request":
        """Parse an HTTP request. A path that names no resource becomes the resource itself."""
        parts = [unquote(part) for part in path.strip("/").split("/")]
        rest = parts[2:] if parts[0] == "api" else parts[3:] if parts[0] == "apis" else []
        if not rest:
            return cls(at, method.lower(), path)
        namespace = ""
        if rest[0] == "namespaces" and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        name = rest[1] if len(rest) > 1 else ""
        verb = _VERBS.get(method) or ("watch" if watch else "get" if name else "list")
        if verb == "create" and not name:
            name = _name_in(body)
        return cls(at, verb, "/".join([rest[0], *rest[2:]]), namespace, name)


@dataclass
class Fault:
    """A fault for requests that match. Patterns use shell syntax."""

    verb: str = "*"
    resource: str = "*"
    namespace: str = "*"
    name: str = "*"
    times: int | None = None
    """Number of requests that the fault applies to; None for all."""
    status: int | None = None
    """HTTP status that the proxy answers instead of the API server."""
    message: str = "injected"
    retry_after: int | None = None
    delay: float = 0.0
    """Seconds that the request waits before anything else happens."""
    lose_answer: bool = False
    """Whether the connection breaks after the API server served the request, before the answer is
    back."""
    matched: list[Request] = field(default_factory=list)

    def matches(self, request: Request) -> bool:
        """Return whether the fault applies to this request."""
        pairs = (
            (request.verb, self.verb),
            (request.resource, self.resource),
            (request.namespace, self.namespace),
            (request.name, self.name),
        )
        left = self.times is None or len(self.matched) < self.times
        return left and all(fnmatch.fnmatchcase(value, pattern) for value, pattern in pairs)

    def answer(self) -> tuple[bytes, dict[str, str]]:
        """Return body and headers of the answer that replaces the API server's."""
        status: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "message": self.message,
            "code": self.status,
        }
        headers = {"Content-Type": "application/json"}
        if self.retry_after is not None:
            headers["Retry-After"] = str(self.retry_after)
            status["details"] = {"retryAfterSeconds": self.retry_after}
        return json.dumps(status).encode(), headers


def _name_in(body: bytes) -> str:
    try:
        return str(json.loads(body)["metadata"].get("name", ""))
    except (ValueError, KeyError, TypeError):
        return ""
