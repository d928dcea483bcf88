"""What may befall a request on its way to the API server."""

import fnmatch
import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclass(frozen=True)
class Request:
    """One request, in the words of RBAC and of the audit log."""

    at: float
    """When it came, in monotonic seconds."""
    verb: str
    resource: str
    """Plural, with the subresource: ddpjobs/status."""
    namespace: str = ""
    name: str = ""

    @classmethod
    def read(
        cls, at: float, method: str, path: str, *, watch: bool = False, body: bytes = b""
    ) -> "Request":
        """Take an HTTP request apart. What is no resource has its path as the resource."""
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
    """What befalls requests that match. Patterns are those of a shell."""

    verb: str = "*"
    resource: str = "*"
    namespace: str = "*"
    name: str = "*"
    times: int | None = None
    """How many requests it befalls; None for all."""
    status: int | None = None
    """The answer in the API server's place."""
    message: str = "injected"
    retry_after: int | None = None
    delay: float = 0.0
    """Seconds before anything else happens to the request."""
    lose_answer: bool = False
    """The API server serves the request, and the connection breaks before its answer is back."""
    befallen: list[Request] = field(default_factory=list)

    def concerns(self, request: Request) -> bool:
        """Whether it befalls this request."""
        pairs = (
            (request.verb, self.verb),
            (request.resource, self.resource),
            (request.namespace, self.namespace),
            (request.name, self.name),
        )
        left = self.times is None or len(self.befallen) < self.times
        return left and all(fnmatch.fnmatchcase(text, pattern) for text, pattern in pairs)

    def answer(self) -> tuple[bytes, dict[str, str]]:
        """Body and headers of the answer in the API server's place."""
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
