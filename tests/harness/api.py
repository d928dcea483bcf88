"""API calls that the harness itself makes, as administrator."""

from __future__ import annotations

import http.client
import json
import ssl
from typing import Any, Final

from tests.harness import paths
from tests.harness.errors import HarnessError
from tests.harness.pki import Authority, Pair

_CALL_LIMIT_S: Final = 10.0
_CONFLICT: Final = 409


class Api:
    """A minimal client of the API server."""

    def __init__(self, authority: Authority, client: Pair) -> None:
        self._context = ssl.create_default_context(cafile=str(authority.pair.certificate))
        self._context.load_cert_chain(client.certificate, client.key)

    def ready(self) -> bool:
        """Return whether the API server reports that it is ready."""
        try:
            status, _ = self._call("GET", "/readyz")
        except (OSError, http.client.HTTPException):
            return False
        return status == http.client.OK

    def get(self, path: str) -> dict[str, Any] | None:
        """Return the object at this path, or None if it does not exist or no answer comes."""
        try:
            status, body = self._call("GET", path)
        except (OSError, http.client.HTTPException):
            return None
        return _document(body) if status == http.client.OK else None

    def create(self, path: str, document: dict[str, Any]) -> None:
        """Create an object unless it exists.

        Raises:
            HarnessError: The API server rejected the request.
        """
        status, body = self._call("POST", path, document)
        if status not in {http.client.CREATED, _CONFLICT}:
            text = body.decode(errors="replace")
            raise HarnessError(f"The API server answered {status} to POST {path}: {text}")

    def _call(
        self, method: str, path: str, document: dict[str, Any] | None = None
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPSConnection(
            paths.API_ADDRESS, paths.API_PORT, timeout=_CALL_LIMIT_S, context=self._context
        )
        headers = {"Content-Type": "application/json", "User-Agent": "ddp-trainer-harness"}
        try:
            body = None if document is None else json.dumps(document)
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


def _document(body: bytes) -> dict[str, Any]:
    document = json.loads(body)
    if not isinstance(document, dict):
        raise HarnessError("The API server must answer with a JSON object.")
    return document


def cluster_role(name: str, rules: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a ClusterRole."""
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name},
        "rules": rules,
    }


def role_binding(role: str, user: str) -> dict[str, Any]:
    """Return a ClusterRoleBinding that gives one user a ClusterRole."""
    group = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": f"ddp-harness:{user}"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
    }
