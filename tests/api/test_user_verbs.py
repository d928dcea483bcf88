"""The verbs of `ddpjob` on a real API server, with no more than the chart's roles for users."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.api.client import Api, path_of
from tests.api.control_plane import ControlPlane
from tests.harness.install import EXAMPLE_IMAGES, ROOT
from tests.operator.support import job_manifest

pytestmark = pytest.mark.api

Verb = Callable[..., Awaitable[tuple[int, str, str]]]
VIEWER, EDITOR = "eve", "ann"


@pytest.fixture
def verb(control_plane: ControlPlane, namespace: str) -> Verb:
    """Return a function that runs `ddpjob` as a user with one of the chart's roles."""
    cluster = control_plane.cluster
    roles = cluster.helm(
        "template", "ddp-trainer", str(ROOT / "charts"), *EXAMPLE_IMAGES,
        "--show-only", "templates/user-roles.yaml",
    ).stdout  # fmt: skip
    bindings = [
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": user, "namespace": namespace},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": role,
            },
            "subjects": [{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}],
        }
        for user, role in ((VIEWER, "ddpjob-viewer"), (EDITOR, "ddpjob-editor"))
    ]
    documents = [*yaml.safe_load_all(roles), *bindings]
    cluster.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(documents))
    files = {user: cluster.kubeconfig_for(user) for user in (VIEWER, EDITOR)}

    async def run(user: str, *arguments: str) -> tuple[int, str, str]:
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "ddp_operator.cli.main", *arguments, "-n", namespace],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env={**os.environ, "KUBECONFIG": str(files[user])},
        )
        return done.returncode, done.stdout, done.stderr

    return run


def status() -> dict[str, Any]:
    condition = {
        "type": "Succeeded",
        "status": "Unknown",
        "reason": "Running",
        "message": "4 ranks are training in attempt 1",
        "lastTransitionTime": "2026-03-01T12:00:00Z",
    }
    return {"attempt": 1, "ready": "2/2", "conditions": [condition]}


async def test_viewer_reads_and_may_not_write(api: Api, namespace: str, verb: Verb) -> None:
    await api.apply_job(namespace, {**job_manifest(), "metadata": {"name": "digits"}})
    path = path_of("ddpjobs", namespace, "digits", "status")
    await api.call("PATCH", path, {"status": status()})
    code, out, err = await verb(VIEWER, "list")
    assert (code, err) == (0, "")
    assert out.splitlines()[1].split()[:3] == ["digits", "Running", "2/2"]
    code, out, _ = await verb(VIEWER, "status", "digits", "-o", "json")
    assert json.loads(out)["status"]["attempt"] == 1
    code, out, _ = await verb(VIEWER, "why", "digits")
    assert (code, out.startswith("digits runs: 4 ranks are training in attempt 1.")) == (0, True)
    code, out, err = await verb(VIEWER, "events", "digits")
    assert (code, out) == (0, "")
    code, out, err = await verb(VIEWER, "logs", "digits")
    assert (code, out, err) == (0, "", "ddpjob: digits-0: the pod is gone\n")
    for change in (["suspend", "digits"], ["scale", "digits", "2"], ["delete", "digits", "-y"]):
        code, out, err = await verb(VIEWER, *change)
        assert (code, out, len(err.splitlines())) == (3, "", 1)
        assert f'User "{VIEWER}" cannot' in err
        assert "the chart's roles ddpjob-viewer and ddpjob-editor allow it" in err


async def test_editor_needs_no_further_right_for_any_verb(
    api: Api, namespace: str, verb: Verb, tmp_path: Path
) -> None:
    file, code_folder = tmp_path / "job.yaml", tmp_path / "src"
    document = {**job_manifest(command=["python", "/code/train.py"])}
    file.write_text(yaml.safe_dump({**document, "metadata": {"name": "digits"}}))
    code_folder.mkdir()
    (code_folder / "train.py").write_text("print('hello')\n")
    submit = ["submit", str(file), "--code", str(code_folder), "--set", "nodes=2"]
    code, out, err = await verb(EDITOR, *submit)
    assert (code, out, err) == (0, f"digits is created in the namespace {namespace}\n", "")
    code, _, err = await verb(EDITOR, *submit)
    assert (code, "a DDPJob 'digits' exists already" in err) == (2, True)
    job = await api.call("GET", path_of("ddpjobs", namespace, "digits"))
    [volume] = job["spec"]["volumes"]
    name = volume["configMap"]["name"]
    stored = await api.call("GET", f"/api/v1/namespaces/{namespace}/configmaps/{name}")
    assert list(stored["data"].values()) == ["print('hello')\n"]
    assert stored["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]
    for change, field, value in (
        (["suspend", "digits"], "suspend", True),
        (["resume", "digits"], "suspend", False),
        (["scale", "digits", "3"], "nodes", 3),
    ):
        code, _, err = await verb(EDITOR, *change)
        assert (code, err) == (0, "")
        job = await api.call("GET", path_of("ddpjobs", namespace, "digits"))
        assert job["spec"][field] == value
    code, _, err = await verb(EDITOR, "scale", "digits", "9999")
    assert (code, err) == (0, "")
    assert (await verb(EDITOR, "delete", "digits", "-y"))[0] == 0
    code, _, err = await verb(EDITOR, "status", "digits")
    assert code == 2
    assert err == f"ddpjob: there is no DDPJob 'digits' in the namespace '{namespace}'\n"


async def test_refused_spec_has_the_sentence_of_the_rule(
    api: Api, namespace: str, verb: Verb, tmp_path: Path
) -> None:
    await api.apply_job(namespace, {**job_manifest(), "metadata": {"name": "digits"}})
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump({**job_manifest(), "metadata": {"name": "x" * 70}}))
    code, out, err = await verb(EDITOR, "submit", str(file))
    assert (code, out, len(err.splitlines())) == (2, "", 1)
