"""The agent's HTTP endpoints: /healthz, /readyz, /status and /attempt."""

import math
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

from pydantic import ValidationError

from ddp_wire.contract import LONGEST_WAIT_SECONDS, AgentPhase, AgentStatus, AttemptOrder

_POLL_SECONDS = 0.05
"""How long closing may take: it delays the end of the container."""
_ORDER_BYTES = 1024
"""An order is shorter."""


class Served(Protocol):
    """What the server needs of the agent. Every method is safe to call from any thread."""

    def status(self) -> AgentStatus:
        """What the agent says of itself now."""

    def news(self, revision: int, seconds: float) -> AgentStatus:
        """The same, once it is of another revision, or after a time."""

    def alive(self) -> bool:
        """Whether the agent's loop has moved lately."""

    def order(self, order: AttemptOrder) -> bool:
        """Take note of an ordered attempt. False when it is for another job's agent."""


class AgentServer:
    """Serves what the agent says of itself, from a thread, so that a probe is never late."""

    def __init__(self, bind: str, port: int, agent: Served) -> None:
        self._server = _Server((bind, port), agent)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_SECONDS,), daemon=True
        )

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], agent: Served) -> None:
        super().__init__(address, _Handler)
        self.agent = agent

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that breaks off is its own affair: the log belongs to the training."""


class _Handler(BaseHTTPRequestHandler):
    server: "_Server"
    protocol_version = "HTTP/1.1"
    timeout = 5

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        match address.path:
            case "/healthz":
                self._answer(self.server.agent.alive(), "ok\n", "the agent's loop hangs\n")
            case "/readyz":
                now = self.server.agent.status()
                ready = now.phase is AgentPhase.TRAINING
                self._answer(ready, "ok\n", f"attempt {now.attempt} is {now.phase}\n")
            case "/status":
                self._tell(parse_qs(address.query))
            case _:
                self._send(HTTPStatus.NOT_FOUND, "not found\n")

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if self.path != "/attempt":
            self._refuse(HTTPStatus.NOT_FOUND, "not found\n")
            return
        if not length.isdigit() or int(length) > _ORDER_BYTES:
            self._refuse(HTTPStatus.BAD_REQUEST, f"at most {_ORDER_BYTES} bytes of JSON\n")
            return
        try:
            order = AttemptOrder.model_validate_json(self.rfile.read(int(length)))
        except ValidationError as error:
            self._send(HTTPStatus.BAD_REQUEST, f"{error.errors()[0]['msg']}\n")
            return
        if self.server.agent.order(order):
            self._send(HTTPStatus.OK, "ok\n")
        else:
            self._send(HTTPStatus.CONFLICT, "this agent works for another job\n")

    def _tell(self, query: dict[str, list[str]]) -> None:
        try:
            revision = int(query.get("revision", ["-1"])[0])
            wait = float(query.get("wait", ["0"])[0])
        except ValueError:
            self._send(HTTPStatus.BAD_REQUEST, "revision and wait must be numbers\n")
            return
        wait = min(max(wait, 0.0), LONGEST_WAIT_SECONDS) if math.isfinite(wait) else 0.0
        self._send(
            HTTPStatus.OK, self.server.agent.news(revision, wait).to_json(), "application/json"
        )

    def _answer(self, good: bool, yes: str, no: str) -> None:
        self._send(HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE, yes if good else no)

    def _refuse(self, code: HTTPStatus, text: str) -> None:
        """Answer a request whose body is not read: the connection cannot go on after it."""
        self.close_connection = True
        self._send(code, text)

    def _send(self, code: HTTPStatus, text: str, kind: str = "text/plain") -> None:
        body = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Probes come each second: they are not worth a line."""
