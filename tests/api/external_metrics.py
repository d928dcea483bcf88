"""Stand-in for a metrics adapter such as prometheus-adapter or KEDA: one external metric.

The API server, its aggregation layer and the controller of HorizontalPodAutoscalers are real. Only
the source of the metric is played: an HTTPS server of the test, which an APIService registers for
the group external.metrics.k8s.io.
"""

import base64
import json
import ssl
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.api.client import Api
from tests.harness import paths
from tests.harness.pki import Authority

JSON = dict[str, Any]

GROUP, VERSION = "external.metrics.k8s.io", "v1beta1"
_ROOT = f"/apis/{GROUP}/{VERSION}"
_NAME, _NAMESPACE = "external-metrics", "kube-system"
_SERVICES = f"/api/v1/namespaces/{_NAMESPACE}/services"
_API_SERVICES = "/apis/apiregistration.k8s.io/v1/apiservices"


class MetricServer:
    """HTTPS server of one external metric. The test sets the value."""

    def __init__(self, metric: str, value: int) -> None:
        """Listen on a free port of the loopback network, for the API server's certificate alone."""
        self.metric, self.value = metric, value
        self.readers: set[str] = set()
        """Users for whom the API server has forwarded a request for the metric."""
        authority = Authority(paths.STATE / "pki")
        pair = authority.issue(_NAME, _NAME, server_names=[f"{_NAME}.{_NAMESPACE}.svc"])
        self.ca = authority.pair.certificate.read_bytes()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.certificate, pair.key)
        context.load_verify_locations(authority.pair.certificate)
        context.verify_mode = ssl.CERT_REQUIRED
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port: int = self._server.server_address[1]

    def start(self) -> None:
        """Answer requests in a thread."""
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, path: str, user: str) -> JSON | None:
        if path == _ROOT:
            resource = {"name": self.metric, "namespaced": True, "verbs": ["get"]}
            resource |= {"kind": "ExternalMetricValueList", "singularName": ""}
            return {
                "apiVersion": "v1",
                "kind": "APIResourceList",
                "groupVersion": f"{GROUP}/{VERSION}",
                "resources": [resource],
            }
        if not path.startswith(f"{_ROOT}/namespaces/") or not path.endswith(f"/{self.metric}"):
            return None
        self.readers.add(user)
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        item = {"metricName": self.metric, "metricLabels": {}, "timestamp": now}
        return {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": "ExternalMetricValueList",
            "metadata": {},
            "items": [{**item, "value": str(self.value)}],
        }

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        answer = self._answer

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                user = self.headers.get("X-Remote-User", "")
                found = answer(self.path.partition("?")[0], user)
                body = json.dumps(found).encode()
                self.send_response(404 if found is None else 200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                """Log nothing."""

        return Handler


@asynccontextmanager
async def serving(api: Api, metric: str, value: int) -> AsyncIterator[MetricServer]:
    """Yield a server whose metric the API server serves as an external metric."""
    server = MetricServer(metric, value)
    server.start()
    # The API server runs on this machine, and no Service of the control plane has endpoints.
    service = {
        "metadata": {"name": _NAME},
        "spec": {
            "type": "ExternalName",
            "externalName": "localhost",
            "ports": [{"port": server.port}],
        },
    }
    name = f"{VERSION}.{GROUP}"
    registered = {
        "metadata": {"name": name},
        "spec": {
            "group": GROUP,
            "version": VERSION,
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "caBundle": _base64(server.ca),
            "service": {"name": _NAME, "namespace": _NAMESPACE, "port": server.port},
        },
    }
    try:
        await api.call("POST", _SERVICES, service)
        await api.call("POST", _API_SERVICES, registered)
        try:
            yield server
        finally:
            await api.call("DELETE", f"{_API_SERVICES}/{name}")
            await api.call("DELETE", f"{_SERVICES}/{_NAME}")
    finally:
        server.close()


async def is_available(api: Api) -> bool:
    """Return whether the API server reaches the registered server."""
    found = await api.call("GET", f"{_API_SERVICES}/{VERSION}.{GROUP}")
    conditions = found.get("status", {}).get("conditions", [])
    return any(c["type"] == "Available" and c["status"] == "True" for c in conditions)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
