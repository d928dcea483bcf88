"""An S3 server on this machine, and a proxy in front of it that fails.

The server is versitygw, which keeps each object as a file.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.harness import extra_packages, gobuild
from tests.harness.ports import free_port
from tests.harness.run import Figures

ACCESS, SECRET = "test-access", "test-secret-of-the-s3-server"
_START_SECONDS = 30.0


@dataclass
class Server:
    """A running S3 server."""

    port: int
    data: Path
    """Folder with a folder for each bucket."""

    def environment(self, port: int | None = None, secret: str = SECRET) -> dict[str, str]:
        """Return the environment of a client.

        Args:
            port: Port of a proxy. By default that of the server.
            secret: The client's secret.
        """
        return {
            **extra_packages.environment("s3"),
            "AWS_ACCESS_KEY_ID": ACCESS,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{port or self.port}",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }


@contextlib.contextmanager
def server(home: Path) -> Iterator[Server]:
    """Run an S3 server without buckets. A folder in its `data` is a bucket."""
    found = Server(free_port(), home / "data")
    sidecar = home / "sidecar"
    for folder in (found.data, sidecar):
        folder.mkdir(parents=True)
    program = gobuild.build(gobuild.VERSITYGW, Figures()) / "versitygw"
    options = ["--port", f"127.0.0.1:{found.port}", "--quiet"]
    backend = ["posix", "--sidecar", str(sidecar), str(found.data)]
    keys = {"ROOT_ACCESS_KEY": ACCESS, "ROOT_SECRET_KEY": SECRET}
    with (home / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [str(program), *options, *backend],
            env={**os.environ, **keys},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        _wait_for(found.port, process)
        yield found
    finally:
        process.kill()
        process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
        with contextlib.suppress(OSError), contextlib.closing(connection):
            connection.request("GET", "/")
            connection.getresponse()
            return
        time.sleep(0.05)
    raise TimeoutError("The S3 server does not answer.")


@dataclass
class Faults:
    """What the proxy does to requests. Each is the part of the requests, from 0 to 1."""

    errors: float = 0.0
    """Answers with status 500 or 503 in place of the server."""
    lost: float = 0.0
    """Answers with status 500 after the server has done what was asked."""
    truncated: float = 0.0
    """Bodies of which only a half arrives before the connection ends."""
    slow: float = 0.0
    """Answers that are 0.2 s late."""
    stale_lists: bool = False
    """Whether lists have the content of the first list with the same query."""
    seed: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    """Number of injected faults by name."""


@contextlib.contextmanager
def proxy(port: int, faults: Faults) -> Iterator[int]:
    """Run a proxy in front of the server's port, and yield the port of the proxy."""
    own = free_port()
    verbs = {f"do_{verb}": _Handler.serve for verb in ("GET", "PUT", "POST", "DELETE", "HEAD")}
    handler = type("Handler", (_Handler,), verbs | {
        "port": port, "faults": faults, "lists": {}, "lock": threading.Lock(),
        "chance": random.Random(faults.seed),  # noqa: S311 - the same faults each time
    })  # fmt: skip
    listener = ThreadingHTTPServer(("127.0.0.1", own), handler)
    listener.daemon_threads = True
    thread = threading.Thread(target=listener.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield own
    finally:
        listener.shutdown()
        listener.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    """A request to the proxy."""

    protocol_version = "HTTP/1.1"
    port: int
    faults: Faults
    chance: random.Random
    lists: dict[str, tuple[int, list[tuple[str, str]], bytes]]
    lock: threading.Lock

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in the base class
        pass

    def _hit(self, name: str, part: float) -> bool:
        with self.lock:
            hit = self.chance.random() < part
            if hit:
                self.faults.counts[name] = self.faults.counts.get(name, 0) + 1
        return hit

    def serve(self) -> None:
        """Answer a request, with the faults that are due."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        faults = self.faults
        if self._hit("slow", faults.slow):
            time.sleep(0.2)
        if self._hit("errors", faults.errors):
            self._answer(self.chance.choice((500, 503)), [], b"")
            return
        status, headers, content = self._forward(body)
        if self._hit("lost", faults.lost):
            status, headers, content = 500, [], b""
        is_list = self.command == "GET" and "list-type=2" in self.path
        if is_list and faults.stale_lists:
            with self.lock:
                old = self.lists.setdefault(self.path, (status, headers, content))
                stale = old[2] != content
                faults.counts["stale"] = faults.counts.get("stale", 0) + stale
            status, headers, content = old
        cut = len(content) > 1 and status < 300 and self._hit("truncated", faults.truncated)
        self._answer(status, headers, content, cut=cut)

    def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            connection.putrequest(
                self.command, self.path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in self.headers.items():
                if name.lower() not in {"connection", "expect"}:
                    connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()

    def _answer(
        self, status: int, headers: list[tuple[str, str]], content: bytes, *, cut: bool = False
    ) -> None:
        self.send_response(status)
        length = str(len(content))
        for name, value in headers:
            if name.lower() == "content-length":
                length = value  # That of a HEAD request has no content.
            elif name.lower() not in {"transfer-encoding", "connection", "date", "server"}:
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(content[: len(content) // 2] if cut else content)
        if cut:
            self.close_connection = True
