"""The agent's HTTP endpoints: /healthz, /readyz and /status."""

import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ddp_agent.contract import AgentPhase, AgentStatus

_POLL_SECONDS = 0.05
"""How long closing may take: it delays the end of the container."""


class AgentServer:
    """Serves what the agent says of itself, from a thread, so that a probe is never late."""

    def __init__(
        self, bind: str, port: int, status: Callable[[], AgentStatus], alive: Callable[[], bool]
    ) -> None:
        self._server = _Server((bind, port), _handler(status, alive))
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

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that breaks off is its own affair: the log belongs to the training."""


def _handler(
    status: Callable[[], AgentStatus], alive: Callable[[], bool]
) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 5

        def do_GET(self) -> None:
            match self.path:
                case "/healthz":
                    self._answer(alive(), "ok\n", "the agent's loop hangs\n")
                case "/readyz":
                    now = status()
                    ready = now.phase is AgentPhase.TRAINING
                    self._answer(ready, "ok\n", f"attempt {now.attempt} is {now.phase}\n")
                case "/status":
                    self._send(HTTPStatus.OK, status().to_json(), "application/json")
                case _:
                    self._send(HTTPStatus.NOT_FOUND, "not found\n")

        def _answer(self, good: bool, yes: str, no: str) -> None:
            self._send(
                HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE, yes if good else no
            )

        def _send(self, code: HTTPStatus, text: str, kind: str = "text/plain") -> None:
            body = text.encode()
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Probes come each second: they are not worth a line."""

    return Handler
