"""A registry of container images, whose tags can move, for the nodes of a test cluster.

The nodes share the network of this machine, and containerd needs no TLS on a loopback address.
"""

import hashlib
import io
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import IO, Any

from tests.harness.ports import free_port
from tools.release.oci_archive import OciArchive

JSON = dict[str, Any]
_HOST = "127.0.0.1"
_BLOB = "application/octet-stream"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"

Open = Callable[[], AbstractContextManager[IO[bytes]]]


class Registry:
    """Images in one repository.

    Attributes:
        repository: Name of the repository, with the address of the registry.
    """

    def __init__(self, port: int) -> None:
        """Create an empty registry."""
        self.repository = f"{_HOST}:{port}/trainer"
        self._tags: dict[str, str] = {}
        self._objects: dict[str, tuple[str, int, Open]] = {}

    def push(self, tag: str, archive: OciArchive, **labels: str) -> str:
        """Store the image of an archive, move a tag to it, and return its digest.

        Args:
            tag: The tag.
            archive: The archive. It must exist as long as the registry.
            labels: Labels of the image. Images with different labels have different digests.
        """
        manifest = archive.manifest()
        for layer in manifest["layers"]:
            opened = partial(archive.open_blob, layer["digest"])
            self._objects[layer["digest"]] = (_BLOB, layer["size"], opened)
        config = archive.config()
        # A node names one image once: by the first repository, if two registries have it.
        here = {"registry": self.repository}
        config["config"].setdefault("Labels", {}).update(here | labels)
        text = json.dumps(config).encode()
        manifest["config"] |= {"digest": self._store(text, _BLOB), "size": len(text)}
        self._tags[tag] = self._store(json.dumps(manifest).encode(), _MANIFEST)
        return self._tags[tag]

    def find(self, name: str) -> tuple[str, str, int, Open] | None:
        """Return digest, media type, size and content of a tag or digest, or None."""
        digest = self._tags.get(name, name)
        found = self._objects.get(digest)
        return (digest, *found) if found else None

    def _store(self, content: bytes, media_type: str) -> str:
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        self._objects[digest] = (media_type, len(content), lambda: closing(io.BytesIO(content)))
        return digest


class _Handler(BaseHTTPRequestHandler):
    """The requests of the distribution protocol that a pull consists of."""

    protocol_version = "HTTP/1.1"

    def __init__(self, registry: Registry, *arguments: Any) -> None:
        self._registry = registry
        super().__init__(*arguments)

    def do_HEAD(self) -> None:
        self._answer(with_content=False)

    def do_GET(self) -> None:
        self._answer(with_content=True)

    def _answer(self, *, with_content: bool) -> None:
        found = self._registry.find(self.path.rpartition("/")[2].partition("?")[0])
        if found is None:
            is_ping = self.path == "/v2/"
            self.send_response(HTTPStatus.OK if is_ping else HTTPStatus.NOT_FOUND)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        digest, media_type, size, opened = found
        self.send_response(HTTPStatus.OK)
        self.send_header("Docker-Content-Digest", digest)
        self.send_header("Content-Type", media_type)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        if with_content:
            with opened() as content:
                shutil.copyfileobj(content, self.wfile)

    def log_message(self, *_: object) -> None:
        """Print nothing: a test that fails prints the events of the pods."""


@contextmanager
def running_registry() -> Iterator[Registry]:
    """Yield an empty registry that serves on a free port, and stop it."""
    port = free_port()
    registry = Registry(port)
    server = ThreadingHTTPServer((_HOST, port), partial(_Handler, registry))
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
