"""TLS: certificates of the client and of the server, and proxies."""

import base64
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ddp_operator.client import ClusterError, connect
from tests.harness.pki import Authority
from tests.operator.client.jobs_api import JobsApi
from tests.operator.client.test_cluster_jobs import running

SERVER_NAME = "api.example"


class Server:
    """API server with TLS that wants a certificate of the client."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority.create(folder / "pki")
        self.api = JobsApi()
        self.api.put(running())
        pair = self.authority.issue("server", "server", server_names=[SERVER_NAME])
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(pair.certificate, pair.key)
        tls.load_verify_locations(self.authority.pair.certificate)
        tls.verify_mode = ssl.CERT_REQUIRED
        server = self.api._server
        server.socket = tls.wrap_socket(server.socket, server_side=True)
        self.path, self.port = folder / "kubeconfig", server.server_port

    def write(self, **cluster: Any) -> None:
        """Write a kubeconfig whose cluster has these fields instead of the right ones."""
        pair = self.authority.issue("ann", "ann")
        entry = {"server": f"https://127.0.0.1:{self.port}", "tls-server-name": SERVER_NAME}
        entry["certificate-authority"] = str(self.authority.pair.certificate)
        user = {
            "client-certificate": str(pair.certificate),
            "client-key-data": base64.b64encode(pair.key.read_bytes()).decode(),
        }
        fields = {key: value for key, value in {**entry, **cluster}.items() if value is not None}
        context = {"cluster": "c", "user": "u", "namespace": "team-a"}
        document = {
            "current-context": "x",
            "contexts": [{"name": "x", "context": context}],
            "clusters": [{"name": "c", "cluster": fields}],
            "users": [{"name": "u", "user": user}],
        }
        self.path.write_text(yaml.safe_dump(document))


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    started = Server(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(started.path))
    yield started
    started.api.close()


def names() -> list[str]:
    return [one["metadata"]["name"] for one in connect().list()]


def test_both_sides_show_their_certificates(server: Server) -> None:
    server.write()
    assert names() == ["digits"]


def test_certificate_of_another_name_is_refused(server: Server) -> None:
    server.write(**{"tls-server-name": None})
    with pytest.raises(ClusterError, match="cannot be reached: its certificate is not trusted"):
        names()


def test_certificate_of_an_unknown_authority_is_refused(server: Server, tmp_path: Path) -> None:
    other = Authority.create(tmp_path / "other")
    server.write(**{"certificate-authority": str(other.pair.certificate)})
    with pytest.raises(ClusterError, match="cannot be reached: its certificate is not trusted"):
        names()


def test_check_of_the_certificate_can_be_left_out(server: Server) -> None:
    fields = {"tls-server-name": None, "certificate-authority": None}
    server.write(**fields, **{"insecure-skip-tls-verify": True})
    assert names() == ["digits"]


def test_proxy_of_the_kubeconfig_carries_the_connection(server: Server) -> None:
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=carry, args=(listener, server.port, asked), daemon=True).start()
        proxy = f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.write(**{"proxy-url": proxy})
        assert names() == ["digits"]
    assert asked == [f"CONNECT 127.0.0.1:{server.port}".encode()]


def carry(listener: socket.socket, port: int, asked: list[bytes]) -> None:
    """Serve one CONNECT request of a client."""
    client, _ = listener.accept()
    request = b""
    while not request.endswith(b"\r\n\r\n"):
        request += client.recv(1)
    asked.append(request.partition(b" HTTP/")[0])
    upstream = socket.create_connection(("127.0.0.1", port))
    client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
    back = threading.Thread(target=copy, args=(upstream, client), daemon=True)
    back.start()
    copy(client, upstream)
    back.join()


def copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # One side has closed the connection.
