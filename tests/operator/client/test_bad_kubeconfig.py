"""Kubeconfigs with mistakes: each is one sentence, and none shows a credential."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from ddp_operator.cli.main import main
from ddp_operator.client import connect
from ddp_operator.cluster.errors import ClusterError, NoClusterError
from ddp_operator.cluster.rest import kubeconfig
from ddp_operator.cluster.rest.kubeconfig import load_access
from tests.operator.client.jobs_api import JobsApi
from tests.operator.client.test_cluster_jobs import running
from tests.operator.client.test_kubeconfig import entry, plugin, write

SECRET = "s3cr3t"  # noqa: S105 - a test's token


def environment(
    folder: Path, *, cluster: dict[str, Any] | None = None, **user: Any
) -> dict[str, str]:
    """Return the environment of a kubeconfig with these fields of its cluster and its user."""
    path = write(
        folder / "config",
        **{"current-context": "here"},
        contexts=entry("context", "here", cluster="c", user="u"),
        clusters=entry("cluster", "c", **{"server": "http://127.0.0.1:1", **(cluster or {})}),
        users=entry("user", "u", **user),
    )
    return {"KUBECONFIG": path}


def refusal(given: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the sentence with which `ddpjob list` ends, which shows no credential."""
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    ended = CliRunner().invoke(main, ["list"])
    assert (ended.exit_code, ended.stdout) == (3, "")
    assert isinstance(ended.exception, SystemExit)
    assert SECRET not in ended.stderr
    (line,) = ended.stderr.splitlines()
    return line


@pytest.mark.parametrize("token", [f"{SECRET}\n", f"  {SECRET}\r\n\n"])
def test_line_end_after_a_token_is_no_part_of_it(tmp_path: Path, token: str) -> None:
    found = load_access(environment=environment(tmp_path, token=token))
    assert found.headers == {"Authorization": f"Bearer {SECRET}"}


def test_line_end_after_the_token_of_a_plugin_is_no_part_of_it(tmp_path: Path) -> None:
    answer = json.dumps({"status": {"token": f"{SECRET}\n"}})
    script = f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\n"
    found = load_access(environment=plugin(tmp_path, script))
    assert found.headers == {"Authorization": f"Bearer {SECRET}"}


BAD_USERS: dict[str, dict[str, Any]] = {
    "line end in a token": {"token": f"{SECRET}\nX-Evil: 1"},
    "NUL in a token": {"token": f"{SECRET}\0"},
    "token that is no Latin-1": {"token": f"{SECRET}\u65e5"},
    "line end in an impersonated user": {"token": SECRET, "as": "ann\neve"},
}


@pytest.mark.parametrize("user", BAD_USERS.values(), ids=BAD_USERS)
def test_credential_that_no_header_can_have_is_refused_without_showing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: dict[str, Any]
) -> None:
    sentence = refusal(environment(tmp_path, **user), monkeypatch)
    assert "of the context 'here' has a character that no HTTP header can have" in sentence


@pytest.mark.parametrize(
    "server",
    ["https://h:abc", "https://[::1", "h:80", "https://", "ftp://h", "https://h:99999", "/x", " "],
)
def test_server_that_is_no_address_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: str
) -> None:
    sentence = refusal(environment(tmp_path, cluster={"server": server}), monkeypatch)
    assert sentence.startswith("ddpjob: the server of the context 'here' must be a URL such as")
    assert sentence.endswith(f"got {server!r}")


@pytest.mark.parametrize("proxy", ["http://h:abc", "http://[::1", 5, "http://"])
def test_proxy_that_is_no_address_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proxy: Any
) -> None:
    given = {"server": "https://127.0.0.1:1", "proxy-url": proxy}
    sentence = refusal(environment(tmp_path, cluster=given), monkeypatch)
    assert "the proxy-url of the context 'here' must be a URL" in sentence


@pytest.mark.parametrize("server", ["http://a..b", f"http://{'x' * 70}.example", "http://h/\u65e5"])
def test_server_that_no_request_can_reach_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: str
) -> None:
    given = environment(tmp_path, cluster={"server": server}, token=SECRET)
    assert "of the context 'here' cannot be reached" in refusal(given, monkeypatch)


def test_proxy_of_the_environment_that_is_no_address_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://h:abc")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    given = environment(tmp_path, cluster={"server": "https://192.0.2.1"}, token=SECRET)
    assert "cannot be reached" in refusal(given, monkeypatch)


def test_scheme_in_capital_letters_is_tls(tmp_path: Path) -> None:
    given = environment(tmp_path, cluster={"server": "HTTPS://api"})
    assert load_access(environment=given).tls is not None


DAMAGED = {
    "contexts as a number": "current-context: x\ncontexts: 5\n",
    "invalid date": "a: 2026-03-99\n",
    "invalid timestamp": "a: !!timestamp abc\n",
    "invalid bool": "a: !!bool 3\n",
    "empty int": "a: !!int ''\n",
    "too large a character": 'a: "\\UFFFFFFFF"\n',
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED)
def test_damaged_file_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    assert "the kubeconfig" in refusal({"KUBECONFIG": str(path)}, monkeypatch)


WRONG_FIELDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "authority as a number": (
        {"server": "https://127.0.0.1:1", "certificate-authority-data": 5},
        {},
    ),
    "path as a number": ({}, {"client-certificate": 5, "client-key": 6}),
    "plugin with variables as text": ({}, {"exec": {"command": "true", "env": ["A=b"]}}),
    "plugin without a status": (
        {},
        {"exec": {"command": "echo", "args": ['{"status": null}']}},
    ),
    "plugin with a status as text": (
        {},
        {"exec": {"command": "echo", "args": [f'{{"status": "{SECRET}"}}']}},
    ),
}


@pytest.mark.parametrize(("cluster", "user"), WRONG_FIELDS.values(), ids=WRONG_FIELDS)
def test_field_of_a_wrong_type_is_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cluster: dict[str, Any],
    user: dict[str, Any],
) -> None:
    refusal(environment(tmp_path, cluster=cluster, **user), monkeypatch)


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the user of the process have neither HOME nor an entry in the list of users."""

    def unknown(_: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", unknown)


@pytest.mark.usefixtures("homeless")
def test_user_without_a_home_has_no_cluster() -> None:
    with pytest.raises(NoClusterError, match="no cluster is configured"):
        load_access(environment={})


@pytest.mark.usefixtures("homeless")
def test_pod_without_a_home_uses_its_service_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubeconfig, "SERVICE_ACCOUNT", tmp_path)
    monkeypatch.setattr(kubeconfig, "_tls", lambda *_: None)
    (tmp_path / "token").write_text("of the pod")
    found = load_access(environment={"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    assert (found.server, found.namespace) == ("https://10.0.0.1:443", "default")


@pytest.mark.usefixtures("homeless")
def test_kubeconfig_below_an_unknown_home_is_named() -> None:
    with pytest.raises(ClusterError, match="the kubeconfig ~/config cannot be read: "):
        load_access(environment={"KUBECONFIG": "~/config"})


def test_token_with_a_line_end_reads_jobs(api: JobsApi, tmp_path: Path) -> None:
    api.put(running())
    path = api.kubeconfig(tmp_path)
    document = yaml.safe_load(path.read_text())
    document["users"][0]["user"]["token"] = f"{SECRET}\n"
    path.write_text(yaml.safe_dump(document))
    assert len(connect().list()) == 1
