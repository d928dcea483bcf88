"""HTTP server of the agent: /healthz, /readyz, /metrics, /status, /attempt, /inspection.

The kubelet reads /healthz and /readyz, and Prometheus reads /metrics. All other requests need
the operator's signature.

The operator keeps a request open: the server answers `GET /status?revision=N&wait=S` as soon as the
status has a revision other than N, or after S seconds. So the operator reads a failure at once. The
server records which revision a client has read: `unread_status` and the loop depend on it. `POST
/attempt` passes an attempt order to the loop, and `POST /inspection` a user's question.

Each connection has a thread. A flood of connections can neither use up all threads nor close the
operator's connection: with too many connections, the server closes the oldest one that has not yet
carried a signed request.

Process: agent (one thread per connection).
"""

import contextlib
import errno
import math
import socket
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import ValidationError

from ddp_agent.network.request_head import LimitedHead
from ddp_agent.orders import AttemptOrders
from ddp_agent.status.status_cell import AgentStatusCell
from ddp_wire.contract import LONGEST_WAIT_SECONDS
from ddp_wire.messages import AgentPhase, AttemptOrder, InspectionRequest
from ddp_wire.signatures import (
    NONCE_HEADER,
    SIGNATURE_HEADER,
    is_genuine,
    sign_answer,
    sign_request,
)

_POLL_SECONDS = 0.05
"""Maximum seconds for closing the server, which delays the end of the container."""
_MAX_BODY_BYTES = 40_960
"""Maximum size of a request body, in bytes. Most of it is the list of members of a large job."""
_MOST_CONNECTIONS = 128
"""Maximum number of connections, and so of threads. Above it, the oldest connection without a
signed request is closed."""
_MOST_KNOWN = 16
"""Maximum number of connections with a signed request, which a flood cannot close. Two operators
may send requests at a time."""


class AgentServer:
    """HTTP server with one thread per connection, so that no request delays a probe."""

    def __init__(
        self,
        bind: str,
        port: int,
        status: AgentStatusCell,
        orders: AttemptOrders,
        is_alive: Callable[[], bool],
        *,
        inspect: Callable[[InspectionRequest], bool],
        render_metrics: Callable[[], bytes],
        secret: str = "",
    ) -> None:
        """Bind to an address.

        Args:
            bind: Address, or "" for all addresses.
            port: Port, or 0 for any free one.
            status: Agent status to serve.
            orders: Receiver of attempt orders.
            is_alive: Function that returns whether the agent's loop makes progress. Threads of the
                server call it.
            inspect: Function that takes a user's question, and returns whether it is valid. Threads
                of the server call it.
            render_metrics: Function that returns the metrics as text. Threads of the server call
                it.
            secret: Secret of this pod, or "" to accept and send messages without a signature.
        """
        self._server = _Server(
            (bind, port),
            status,
            orders,
            is_alive,
            inspect=inspect,
            render_metrics=render_metrics,
            secret=secret,
        )
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_SECONDS,), daemon=True
        )

    @property
    def port(self) -> int:
        """Port on which the server listens."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Serve requests in a thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop serving requests."""
        self._server.shutdown()
        self._server.server_close()


class _Connections:
    """Open connections. A flood of unsigned requests can neither exhaust nor close them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._strangers: dict[socket.socket, None] = {}
        self._known: dict[socket.socket, None] = {}

    def add(self, connection: socket.socket) -> None:
        """Add a connection. With too many, close the oldest one without a signed request."""
        with self._lock:
            if len(self._strangers) >= _MOST_CONNECTIONS:
                self._close_oldest()
            self._strangers[connection] = None

    def close_oldest(self) -> None:
        """Close the oldest connection without a signed request, if there is one."""
        with self._lock:
            if self._strangers:
                self._close_oldest()

    def _close_oldest(self) -> None:
        oldest = next(iter(self._strangers))
        del self._strangers[oldest]
        with contextlib.suppress(OSError):
            oldest.shutdown(socket.SHUT_RDWR)  # Its thread reads an end, and closes it.

    def know(self, connection: socket.socket) -> None:
        """Protect a connection from a flood after a request that the operator has signed."""
        with self._lock:
            if connection in self._strangers and len(self._known) < _MOST_KNOWN:
                del self._strangers[connection]
                self._known[connection] = None

    def remove(self, connection: socket.socket) -> None:
        """Remove a connection that has ended."""
        with self._lock:
            self._strangers.pop(connection, None)
            self._known.pop(connection, None)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    """Number of connections that may wait to be accepted. With few, a flood would delay a probe by
    1 s."""

    def __init__(
        self,
        address: tuple[str, int],
        status: AgentStatusCell,
        orders: AttemptOrders,
        is_alive: Callable[[], bool],
        *,
        inspect: Callable[[InspectionRequest], bool],
        render_metrics: Callable[[], bytes],
        secret: str,
    ) -> None:
        # All addresses of the pod, because a cluster may use IPv4, IPv6 or both.
        if ":" in address[0] or (not address[0] and socket.has_dualstack_ipv6()):
            self.address_family = socket.AF_INET6
        super().__init__(address, _Handler)
        self.secret = secret
        self.status, self.orders, self.is_alive = status, orders, is_alive
        self.inspect, self.render_metrics = inspect, render_metrics
        self.connections = _Connections()

    def get_request(self) -> Any:
        """Accept a connection. If no file descriptor is free, first close an unsigned one.

        Raises:
            OSError: There is no connection to accept.
        """
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in {errno.EMFILE, errno.ENFILE}:
                self.connections.close_oldest()
                time.sleep(_POLL_SECONDS)  # Its thread closes it. Until then accepting would spin.
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a new thread."""
        self.connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """End a connection."""
        self.connections.remove(request)
        super().shutdown_request(request)

    def server_bind(self) -> None:
        """Bind without the DNS query of the base class for this host's name."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "", self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of clients that disconnect early. The log belongs to the training."""


class _Handler(BaseHTTPRequestHandler):
    server: "_Server"
    protocol_version = "HTTP/1.1"
    timeout = 5

    def setup(self) -> None:
        """Limit the size of each request's head."""
        super().setup()
        self._head = LimitedHead(self.rfile)
        self.rfile: Any = self._head

    def handle_one_request(self) -> None:
        """Serve the next request of the connection."""
        self._head.begin()
        super().handle_one_request()

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        match address.path:
            case "/healthz":
                self._send_probe(self.server.is_alive(), "the agent's loop hangs\n")
            case "/readyz":
                now = self.server.status.current()
                ready = now.phase is AgentPhase.TRAINING
                self._send_probe(ready, f"attempt {now.attempt} is {now.phase}\n")
            case "/metrics":
                text = self.server.render_metrics().decode()
                self._send(HTTPStatus.OK, text, CONTENT_TYPE_LATEST)
            case "/status":
                if self._is_from_operator(b""):
                    self._send_status(parse_qs(address.query))
            case _:
                self._send(HTTPStatus.NOT_FOUND, "not found\n")

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if self.path not in {"/attempt", "/inspection"}:
            self._refuse(HTTPStatus.NOT_FOUND, "not found\n")
            return
        if not length.isdigit() or int(length) > _MAX_BODY_BYTES:
            text = f"the body must be JSON of at most {_MAX_BODY_BYTES} bytes\n"
            self._refuse(HTTPStatus.BAD_REQUEST, text)
            return
        body = self.rfile.read(int(length))
        if not self._is_from_operator(body):
            return
        try:
            refusal = self._take_order(body) if self.path == "/attempt" else self._inspect(body)
        except ValidationError as error:
            self._send(HTTPStatus.BAD_REQUEST, f"{error.errors()[0]['msg']}\n")
        except ValueError as error:
            self._send(HTTPStatus.BAD_REQUEST, f"members: {error}\n")
        else:
            code = HTTPStatus.CONFLICT if refusal else HTTPStatus.OK
            self._send(code, f"{refusal or 'ok'}\n")

    def _take_order(self, body: bytes) -> str:
        """Pass an attempt order to the loop. Return why it is refused, or ""."""
        if self.server.orders.accept(AttemptOrder.model_validate_json(body)):
            return ""
        return "the order is for another job, or too far ahead of the pod's annotation"

    def _inspect(self, body: bytes) -> str:
        """Pass a user's question to the loop. Return why it is refused, or ""."""
        if self.server.inspect(InspectionRequest.model_validate_json(body)):
            return ""
        return "the question is for another job, or unknown to this agent"

    def _is_from_operator(self, body: bytes) -> bool:
        """Return whether a request has the operator's signature. Refuse the request otherwise."""
        secret, nonce = self.server.secret, self.headers.get(NONCE_HEADER, "")
        if not secret:
            return True
        expected = sign_request(secret, nonce, self.command, self.path, body)
        if nonce and is_genuine(self.headers.get(SIGNATURE_HEADER), expected):
            self.server.connections.know(self.connection)
            return True
        text = "the request must be signed with the secret in the pod's spec\n"
        self._refuse(HTTPStatus.FORBIDDEN, text)
        return False

    def _send_status(self, query: dict[str, list[str]]) -> None:
        """Send the agent status. First wait for a new revision if the query requests it."""
        try:
            revision = int(query.get("revision", ["-1"])[0])
            wait = float(query.get("wait", ["0"])[0])
        except ValueError:
            self._send(HTTPStatus.BAD_REQUEST, "the parameters revision and wait must be numbers\n")
            return
        wait = min(max(wait, 0.0), LONGEST_WAIT_SECONDS) if math.isfinite(wait) else 0.0
        status = self.server.status.wait_for_change(revision, wait)
        self._send(HTTPStatus.OK, status.to_json(), "application/json")
        self.server.status.record_read(status)

    def _send_probe(self, good: bool, otherwise: str) -> None:
        """Send the answer to a kubelet probe."""
        code = HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE
        self._send(code, "ok\n" if good else otherwise)

    def _refuse(self, code: HTTPStatus, text: str) -> None:
        """Refuse a request without reading its body, and close the connection."""
        self.close_connection = True
        self._send(code, text)

    def _send(self, code: HTTPStatus, text: str, kind: str = "text/plain") -> None:
        body = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        nonce = self.headers.get(NONCE_HEADER)
        if nonce and self.server.secret:
            signature = sign_answer(self.server.secret, nonce, code, body)
            self.send_header(SIGNATURE_HEADER, signature)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing, because probes arrive every second."""
