"""Kubeconfigs: several files, relative paths, exec plugins, and the account of a pod."""

import base64
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml

from ddp_operator.cluster.errors import ClusterError, NoClusterError
from ddp_operator.cluster.rest import kubeconfig
from ddp_operator.cluster.rest.kubeconfig import load_access


def write(path: Path, **document: Any) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(document))
    return str(path)


def entry(kind: str, name: str, **fields: Any) -> list[dict[str, Any]]:
    return [{"name": name, kind: fields}]


def test_first_file_that_has_an_entry_wins_and_the_files_complete_each_other(
    tmp_path: Path,
) -> None:
    first = write(
        tmp_path / "a" / "config",
        contexts=entry("context", "here", cluster="c", user="u", namespace="team-a"),
        users=entry("user", "u", token="first"),  # noqa: S106 - a test's token
    )
    second = write(
        tmp_path / "b" / "config",
        **{"current-context": "here"},
        clusters=entry("cluster", "c", server="http://api/"),
        users=entry("user", "u", token="second"),  # noqa: S106 - a test's token
    )
    listed = os.pathsep.join([first, str(tmp_path / "none"), second])
    found = load_access(environment={"KUBECONFIG": listed})
    assert (found.server, found.namespace, found.context) == ("http://api", "team-a", "here")
    assert found.headers == {"Authorization": "Bearer first"}
    assert found.tls is None


def one_user(folder: Path, **user: Any) -> dict[str, str]:
    path = write(
        folder / "config",
        **{"current-context": "here"},
        contexts=entry("context", "here", cluster="c", user="u"),
        clusters=entry("cluster", "c", server="http://api"),
        users=entry("user", "u", **user),
    )
    return {"KUBECONFIG": path}


def test_paths_are_relative_to_their_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from a file\n")
    found = load_access(environment=one_user(tmp_path, tokenFile="token"))
    assert found.headers == {"Authorization": "Bearer from a file"}
    assert found.namespace == "default"


def test_password_and_impersonation_are_headers(tmp_path: Path) -> None:
    user = {"username": "ann", "password": "secret", "as": "eve"}
    found = load_access(environment=one_user(tmp_path, **user))
    pair = base64.b64encode(b"ann:secret").decode()
    assert found.headers == {"Authorization": f"Basic {pair}", "Impersonate-User": "eve"}


PLUGIN = """#!/bin/sh
case "$KUBERNETES_EXEC_INFO" in *ExecCredential*) ;; *) exit 3 ;; esac
echo "{\\"kind\\": \\"ExecCredential\\", \\"status\\": {\\"token\\": \\"$1-$COLOUR\\"}}"
"""


def plugin(folder: Path, text: str = PLUGIN) -> dict[str, str]:
    path = folder / "login"
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    settings = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "./login",
        "args": ["key"],
        "env": [{"name": "COLOUR", "value": "blue"}],
    }
    return one_user(folder, exec=settings)


def test_plugin_beside_the_file_prints_the_token(tmp_path: Path) -> None:
    found = load_access(environment=plugin(tmp_path))
    assert found.headers == {"Authorization": "Bearer key-blue"}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("#!/bin/sh\nexit 4\n", "login gave no credentials: exit code 4"),
        ("#!/bin/sh\necho hello\n", "login must print an ExecCredential"),
    ],
)
def test_plugin_that_fails_is_named(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ClusterError, match=sentence):
        load_access(environment=plugin(tmp_path, text))


def test_pod_without_a_kubeconfig_uses_its_service_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubeconfig, "SERVICE_ACCOUNT", tmp_path)
    monkeypatch.setattr(kubeconfig, "_tls", lambda *_: None)
    (tmp_path / "token").write_text("of the pod")
    (tmp_path / "namespace").write_text("team-a")
    address = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    found = load_access(environment={**address, "KUBECONFIG": str(tmp_path / "none")})
    assert (found.server, found.namespace) == ("https://[fd00::1]:443", "team-a")
    assert found.headers == {"Authorization": "Bearer of the pod"}


def test_no_kubeconfig_is_no_cluster(tmp_path: Path) -> None:
    with pytest.raises(NoClusterError, match="no cluster is configured: set KUBECONFIG"):
        load_access(environment={"KUBECONFIG": str(tmp_path / "none")})


def test_data_that_is_no_base64_is_named_with_the_context(tmp_path: Path) -> None:
    user = {"client-certificate-data": "x", "client-key-data": "y"}
    with pytest.raises(ClusterError, match="the credentials of the context 'here' cannot be used"):
        load_access(environment=one_user(tmp_path, **user))
