"""Read the kubeconfig of a user: the address of the API server, TLS and credentials.

`kubectl` reads the same files in the same way. The client of the package `kubernetes` reads them
too, but its import takes longer than most commands.
"""

import base64
import binascii
import json
import os
import re
import ssl
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from ddp_operator.cluster.errors import ClusterError, NoClusterError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Folder with the credentials of a pod."""
_PLUGIN_SECONDS = 60
_EXEC_VERSIONS = "client.authentication.k8s.io"
_HEADER_TEXT = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f\u0100-\U0010ffff]*")
"""Pattern of the text of an HTTP header: Latin-1 without control characters."""
_HTTPS_PORT = "443"
_YAML_ERRORS = (yaml.YAMLError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Errors of PyYAML. Values of a wrong format raise more than its own ones."""


@dataclass(frozen=True)
class Access:
    """One API server, with the credentials of a user."""

    server: str
    """URL of the API server."""
    namespace: str
    """Namespace of the context."""
    context: str
    """Name of the context, for messages."""
    headers: Mapping[str, str]
    """HTTP headers that carry the credentials."""
    tls: ssl.SSLContext | None
    """Settings of TLS, or None for a server without TLS."""
    proxy: str | None = None
    """URL of the proxy that the kubeconfig names."""
    tls_server_name: str | None = None


def load_access(context: str | None = None, environment: Mapping[str, str] = os.environ) -> Access:
    """Return the access of a context of the kubeconfig, or that of this pod without a kubeconfig.

    Raises:
        NoClusterError: No kubeconfig names a cluster, and this process does not run in a pod.
        ClusterError: The kubeconfig or its credentials cannot be used.
    """
    documents = _documents(environment)
    merged = _Merged(documents)
    name = context or merged.current
    if not name:
        if "KUBERNETES_SERVICE_HOST" in environment and (SERVICE_ACCOUNT / "token").exists():
            return _of_pod(environment)
        raise NoClusterError("no cluster is configured: set KUBECONFIG or create ~/.kube/config")
    chosen = merged.find("contexts", "context", name)
    if chosen is None:
        known = ", ".join(merged.names("contexts")) or "none"
        raise ClusterError(f"the kubeconfig has no context {name!r}; it has: {known}")
    cluster = merged.find("clusters", "cluster", str(chosen.get("cluster")))
    if cluster is None or not isinstance(cluster.get("server"), str):
        raise ClusterError(f"the context {name!r} of the kubeconfig names no cluster with a server")
    user = merged.find("users", "user", str(chosen.get("user"))) or {}
    return _access(name, str(chosen.get("namespace") or "default"), cluster, user)


class _Merged:
    """The entries of several kubeconfig files. The first file that has an entry wins."""

    def __init__(self, documents: Sequence[tuple[Path, Mapping[str, Any]]]) -> None:
        self._documents = documents

    @property
    def current(self) -> str:
        found = (document.get("current-context") for _, document in self._documents)
        return next((str(name) for name in found if name), "")

    def names(self, kind: str) -> list[str]:
        return [str(entry.get("name")) for _, entry in self._entries(kind)]

    def find(self, kind: str, field: str, name: str) -> dict[str, Any] | None:
        """Return an entry. Relative paths in it become absolute."""
        for folder, entry in self._entries(kind):
            if entry.get("name") == name:
                found = entry.get(field)
                return _with_paths(found, folder) if isinstance(found, dict) else {}
        return None

    def _entries(self, kind: str) -> list[tuple[Path, Mapping[str, Any]]]:
        return [
            (folder, entry)
            for folder, document in self._documents
            for entry in _list(document.get(kind))
            if isinstance(entry, dict)
        ]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


_PATHS = ("certificate-authority", "client-certificate", "client-key", "tokenFile")


def _with_paths(entry: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    paths = {key: str(folder / str(entry[key])) for key in _PATHS if entry.get(key)}
    return {**entry, **paths, "folder": folder}


def _documents(environment: Mapping[str, str]) -> list[tuple[Path, Mapping[str, Any]]]:
    """Return the kubeconfig files that exist, each with its folder."""
    found: list[tuple[Path, Mapping[str, Any]]] = []
    for path in _paths(environment):
        try:
            loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
            document = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)  # noqa: S506
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is no text in UTF-8"
            raise ClusterError(f"the kubeconfig {path} cannot be read: {why}") from error
        except _YAML_ERRORS as error:
            raise ClusterError(f"the kubeconfig {path} must be YAML") from error
        if isinstance(document, dict):
            found.append((path.parent, document))
    return found


def _paths(environment: Mapping[str, str]) -> list[Path]:
    """Return the paths of the kubeconfig files, which need not exist."""
    listed = environment.get("KUBECONFIG")
    names = list(filter(None, listed.split(os.pathsep))) if listed else ["~/.kube/config"]
    found = []
    for name in names:
        try:
            found.append(Path(name).expanduser())
        except RuntimeError as error:  # Neither HOME nor the list of users has the folder.
            if listed:
                sentence = f"the kubeconfig {name} cannot be read: its user has no home directory"
                raise ClusterError(sentence) from error
    return found


def _access(
    name: str, namespace: str, cluster: Mapping[str, Any], user: Mapping[str, Any]
) -> Access:
    try:
        headers, certificate = _credentials(user, cluster)
        secure = _checked_url(cluster["server"], "server", name).startswith("https:")
        tls = _tls(cluster, certificate) if secure else None
    except FileNotFoundError as error:
        sentence = f"the context {name!r} of the kubeconfig names a missing file: {error.filename}"
        raise ClusterError(sentence) from error
    except (OSError, binascii.Error, ValueError, TypeError) as error:
        sentence = f"the credentials of the context {name!r} cannot be used: {error}"
        raise ClusterError(sentence) from error
    if user.get("as"):
        headers["Impersonate-User"] = str(user["as"])
    for header, text in headers.items():
        if not _HEADER_TEXT.fullmatch(text):  # The text is a credential, so no error shows it.
            sentence = f"the value for {header} of the context {name!r} has a character"
            raise ClusterError(f"{sentence} that no HTTP header can have")
    proxy = cluster.get("proxy-url") or None
    return Access(
        server=cluster["server"].rstrip("/"),
        namespace=namespace,
        context=name,
        headers=headers,
        tls=tls,
        proxy=_checked_url(proxy, "proxy-url", name) if proxy is not None else None,
        tls_server_name=cluster.get("tls-server-name"),
    )


def _checked_url(value: Any, field: str, context: str) -> str:
    """Return a URL of the kubeconfig with its scheme in lower-case letters.

    Raises:
        ClusterError: It is no URL of a server.
    """
    try:
        url = urlsplit(value if isinstance(value, str) else "")
        usable = url.scheme in {"http", "https"} and url.hostname
        _ = url.port
    except ValueError:
        usable = None
    if not usable:
        sentence = f"the {field} of the context {context!r} must be a URL such as https://host:6443"
        raise ClusterError(f"{sentence}, got {value!r}")
    return url.geturl()  # It has the scheme in lower-case letters.


def _of_pod(environment: Mapping[str, str]) -> Access:
    """Return the access of the service account of this pod."""
    host = environment["KUBERNETES_SERVICE_HOST"]
    port = environment.get("KUBERNETES_SERVICE_PORT") or _HTTPS_PORT
    place = f"[{host}]" if ":" in host else host
    cluster = {
        "server": f"https://{place}:{port}",
        "certificate-authority": str(SERVICE_ACCOUNT / "ca.crt"),
    }
    try:
        namespace = (SERVICE_ACCOUNT / "namespace").read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        namespace = ""
    user = {"tokenFile": str(SERVICE_ACCOUNT / "token")}
    return _access("in-cluster", namespace or "default", cluster, user)


def _credentials(
    user: Mapping[str, Any], cluster: Mapping[str, Any]
) -> tuple[dict[str, str], tuple[bytes, bytes] | None]:
    """Return the HTTP headers and the client certificate with its key of a user."""
    if isinstance(user.get("exec"), dict):
        return _from_plugin(user["exec"], cluster, user.get("folder", Path()))
    headers = {}
    if user.get("token"):
        headers["Authorization"] = f"Bearer {str(user['token']).strip()}"
    elif user.get("tokenFile"):
        token = Path(user["tokenFile"]).read_text(encoding="utf-8").strip()
        headers["Authorization"] = f"Bearer {token}"
    elif user.get("username"):
        pair = f"{user['username']}:{user.get('password', '')}".encode()
        headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
    certificate, key = _data(user, "client-certificate"), _data(user, "client-key")
    return headers, (certificate, key) if certificate and key else None


def _data(entry: Mapping[str, Any], name: str) -> bytes | None:
    """Return the content of a file that an entry contains or names."""
    if entry.get(f"{name}-data"):
        return base64.b64decode(entry[f"{name}-data"])
    return Path(entry[name]).read_bytes() if entry.get(name) else None


def _from_plugin(
    plugin: Mapping[str, Any], cluster: Mapping[str, Any], folder: Path
) -> tuple[dict[str, str], tuple[bytes, bytes] | None]:
    """Return the credentials that a program of the kubeconfig prints (an exec plugin)."""
    program = str(plugin.get("command") or "")
    if "/" in program and not Path(program).is_absolute():
        program = str(folder / program)
    version = str(plugin.get("apiVersion") or f"{_EXEC_VERSIONS}/v1")
    spec: dict[str, Any] = {"interactive": False}
    if plugin.get("provideClusterInfo"):
        spec["cluster"] = {"server": cluster["server"]}
        if data := _data(cluster, "certificate-authority"):
            spec["cluster"]["certificate-authority-data"] = base64.b64encode(data).decode()
    info = json.dumps({"apiVersion": version, "kind": "ExecCredential", "spec": spec})
    try:
        added = {str(one["name"]): str(one["value"]) for one in plugin.get("env") or []}
        arguments = [str(one) for one in plugin.get("args") or []]
    except (KeyError, TypeError) as error:
        sentence = f"the kubeconfig must give {program} a list of args, and names and values in env"
        raise ClusterError(sentence) from error
    try:
        done = subprocess.run(
            [program, *arguments],
            env={**os.environ, **added, "KUBERNETES_EXEC_INFO": info},
            stdout=subprocess.PIPE,
            check=True,
            timeout=_PLUGIN_SECONDS,
        )
        status = dict(json.loads(done.stdout)["status"])
    except FileNotFoundError as error:
        hint = f" ({plugin['installHint']})" if plugin.get("installHint") else ""
        sentence = f"the kubeconfig needs the program {program!r}, which is not installed{hint}"
        raise ClusterError(sentence) from error
    except subprocess.TimeoutExpired as error:
        sentence = f"{program} gave no credentials within {_PLUGIN_SECONDS} s"
        raise ClusterError(sentence) from error
    except subprocess.CalledProcessError as error:
        sentence = f"{program} gave no credentials: exit code {error.returncode}"
        raise ClusterError(sentence) from error
    except (ValueError, KeyError, TypeError) as error:
        raise ClusterError(f"{program} must print an ExecCredential") from error
    token = str(status.get("token") or "").strip()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    pair = status.get("clientCertificateData"), status.get("clientKeyData")
    return headers, (str(pair[0]).encode(), str(pair[1]).encode()) if all(pair) else None


def _tls(cluster: Mapping[str, Any], certificate: tuple[bytes, bytes] | None) -> ssl.SSLContext:
    authority = _data(cluster, "certificate-authority")
    tls = ssl.create_default_context(cadata=authority.decode() if authority else None)
    if cluster.get("insecure-skip-tls-verify"):
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    if certificate is not None:
        # The standard library loads a certificate only from a file. Only this user can read it.
        with tempfile.NamedTemporaryFile(prefix="ddpjob-") as file:
            file.write(b"\n".join(certificate))
            file.flush()
            tls.load_cert_chain(file.name)
    return tls
