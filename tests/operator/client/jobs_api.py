"""API server over real HTTP with DDPJobs, Events, ConfigMaps and the logs of pods."""

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

JSON = dict[str, Any]
JOBS = "/apis/ddp-trainer.dev/v1alpha1"


class JobsApi:
    """API server that stores jobs of any namespace. `close` stops it."""

    def __init__(self) -> None:
        self.objects: dict[str, JSON] = {}
        """Objects by path."""
        self.logs: dict[str, PodLog] = {}
        """Logs by the name of the pod."""
        self.refused: dict[tuple[str, str], tuple[int, str]] = {}
        """Status and message of requests that are refused, by method and end of the path."""
        self.on_creation: Callable[[JSON], None] = lambda _: None
        """Function that is called with each created object, which it may change."""
        self.on_annotation: Callable[[str | None], None] = lambda _: None
        """Function that is called with the value of each changed annotation of a job."""
        self.lists = True
        """Whether lists have items, as those of a Kubernetes API server have."""
        self.requests: list[tuple[str, str, Any]] = []
        api = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                api._answer(self, self.command, body)

            def log_message(self, *_: Any) -> None:
                pass

        for method in ("GET", "POST", "PATCH", "DELETE"):
            setattr(Handler, f"do_{method}", Handler.answer)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        for log in self.logs.values():
            log.end()
        self._server.shutdown()
        self._server.server_close()

    def put(self, job: JSON) -> None:
        metadata = job["metadata"]
        path = f"{JOBS}/namespaces/{metadata['namespace']}/ddpjobs/{metadata['name']}"
        self.objects[path] = job

    def kubeconfig(self, folder: Path, namespace: str = "team-a") -> Path:
        path = folder / "kubeconfig.yaml"
        context = {"cluster": "fake", "user": "fake", "namespace": namespace}
        document = {
            "current-context": "fake",
            "clusters": [{"name": "fake", "cluster": {"server": self.address}}],
            "users": [{"name": "fake", "user": {"token": "secret"}}],
            "contexts": [{"name": "fake", "context": context}],
        }
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
        return path

    def _answer(self, handler: BaseHTTPRequestHandler, method: str, body: Any) -> None:
        url = urlsplit(handler.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        self.requests.append((method, url.path, body))
        for (refused, end), (status, message) in self.refused.items():
            if refused == method and url.path.endswith(end):
                reason = {403: "Forbidden", 422: "Invalid", 500: "InternalError"}.get(status, "")
                return _send(handler, status, {"message": message, "reason": reason})
        if url.path.endswith("/log"):
            return self._log(handler, url.path.split("/")[-2], query)
        if not url.path.startswith((JOBS, "/api/v1")):
            handler.send_response(404)
            handler.end_headers()
            handler.wfile.write(b"404 page not found\n")
            return None
        return _send(handler, *self._result(method, url.path, query, body))

    def _result(self, method: str, path: str, query: JSON, body: Any) -> tuple[int, JSON]:
        if method == "POST":
            full = f"{path}/{body['metadata']['name']}"
            if full in self.objects:
                return 409, {"message": "it exists", "reason": "AlreadyExists"}
            if "dryRun" not in query:
                metadata = {"uid": f"uid-{len(self.objects)}", **body["metadata"]}
                self.objects[full] = {**body, "metadata": metadata}
                self.on_creation(self.objects[full])
                return 201, self.objects[full]
            return 201, body
        lists = {"ddpjobs", "pods", "events", "configmaps"}
        if method == "GET" and path.rpartition("/")[2] in lists:
            if not self.lists:
                return 200, {"ok": True}
            kind = path.rpartition("/")[2]
            under = path if "/namespaces/" in path else path.removesuffix(f"/{kind}")
            name = query.get("fieldSelector", "").removeprefix("metadata.name=")
            end = f"/{kind}/{name if kind == 'configmaps' else ''}"
            found = self.objects.items()
            return 200, {"items": [o for p, o in found if p.startswith(under) and end in p]}
        target = path.removesuffix("/scale")
        if target not in self.objects:
            return 404, {"message": f"{path} not found", "reason": "NotFound"}
        if method == "DELETE":
            return 200, self.objects.pop(target)
        if method == "PATCH":
            self._patch(self.objects[target], body, scales=path != target)
        return 200, self.objects[target]

    def _patch(self, job: JSON, body: JSON, *, scales: bool) -> None:
        if "metadata" in body:
            annotations = job["metadata"].setdefault("annotations", {})
            for key, value in body["metadata"]["annotations"].items():
                annotations[key] = value
                self.on_annotation(value)
            return
        given = body["spec"]
        job.setdefault("spec", {}).update({"nodes": given["replicas"]} if scales else given)

    def _log(self, handler: BaseHTTPRequestHandler, pod: str, query: JSON) -> None:
        log = self.logs.get(pod)
        if log is None:
            return _send(handler, 404, {"message": f'pods "{pod}" not found', "reason": "NotFound"})
        handler.send_response(200)
        cut = log.cuts.pop(0) if log.cuts else None
        if cut is not None:  # The response has fewer bytes than its head promises.
            handler.send_header("Content-Length", "1000000")
        handler.end_headers()
        read = sent = 0
        while True:
            ended = log.ended
            for line in log.lines[read:]:
                read += 1
                if "sinceTime" in query and line[:19] < query["sinceTime"][:19].encode():
                    continue
                if sent == cut:
                    handler.wfile.write(line[:40])  # The connection breaks within a line.
                    return None
                handler.wfile.write(line if "timestamps" in query else line.partition(b" ")[2])
                sent += 1
            handler.wfile.flush()
            if ended or "follow" not in query:
                return None
            time.sleep(0.02)


class PodLog:
    """Log of one pod, to which a test adds lines."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.ended = False
        self.cuts: list[int] = []
        """Number of lines after which the connection breaks, for each of the next requests."""

    def add(self, second: float, text: str) -> None:
        stamp = f"2026-03-01T12:{int(second) // 60:02}:{second % 60:012.9f}Z"
        self.lines.append(f"{stamp} {text}\n".encode())

    def end(self) -> None:
        self.ended = True


def _send(handler: BaseHTTPRequestHandler, status: int, document: JSON) -> None:
    text = json.dumps(document).encode()
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(text)))
    handler.end_headers()
    handler.wfile.write(text)
