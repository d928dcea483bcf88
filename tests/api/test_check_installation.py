"""The command of `helm test` with the rights of the chart, and the manifest without Helm."""

import asyncio
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.api.cases.test_installation import CRD, removed
from tests.api.client import Api, eventually, path_of
from tests.api.control_plane import ControlPlane
from tests.harness.install import EXAMPLE_IMAGES, ROOT
from tools.install_manifest import build_install_manifest

pytestmark = pytest.mark.api

JSON = dict[str, Any]
NAME = "ddp-trainer"
IMAGE = "example.invalid/pause"
DEPLOYMENTS = "/apis/apps/v1/namespaces/{}/deployments"


@dataclass(frozen=True)
class HelmTest:
    """The command of the pod, run as its ServiceAccount."""

    command: list[str]
    kubeconfig: Path

    async def run(self) -> str:
        """Return the last line of the command, and check that its exit code fits."""
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, *self.command[1:], "--seconds=0"],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env={**os.environ, "KUBECONFIG": str(self.kubeconfig)},
        )
        assert (done.returncode == 0) is (done.stderr == ""), done
        return (done.stdout or done.stderr).removeprefix("ddp-trainer: ").rstrip("\n")


@pytest.fixture
def helm_test(control_plane: ControlPlane, namespace: str, tmp_path: Path) -> HelmTest:
    """Return the test of a release in the namespace of this test, with its rights."""
    cluster = control_plane.cluster
    chart = cluster.helm(
        "template", NAME, str(ROOT / "charts"), "-n", namespace, *EXAMPLE_IMAGES,
        "--show-only", "templates/tests/installation.yaml",
    ).stdout  # fmt: skip
    documents = [d for d in yaml.safe_load_all(chart) if d]
    *rights, pod = documents
    cluster.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(rights))
    [container] = pod["spec"]["containers"]
    account = pod["spec"]["serviceAccountName"]
    token = cluster.kubectl("-n", namespace, "create", "token", account).stdout.strip()
    document = yaml.safe_load(cluster.kubeconfig.read_text(encoding="utf-8"))
    document["users"][0]["user"] = {"token": token}
    kubeconfig = tmp_path / "kubeconfig.yaml"
    kubeconfig.write_text(yaml.safe_dump(document), encoding="utf-8")
    return HelmTest([*container["command"], *container["args"]], kubeconfig)


async def make_pod_ready(api: Api, namespace: str) -> None:
    """Report the only pod of a namespace as ready, as its kubelet would."""

    async def exists() -> bool:
        return len(await api.list("pods", namespace)) == 1

    await eventually(exists, "the Deployment has its pod")
    [pod] = await api.list("pods", namespace)
    ready = {"type": "Ready", "status": "True"}
    path = path_of("pods", namespace, pod["metadata"]["name"], "status")
    await api.call("PATCH", path, {"status": {"phase": "Running", "conditions": [ready]}})


def deployment() -> JSON:
    """Return a Deployment with the operator's name."""
    labels = {"app": NAME}
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    profile = {"type": "RuntimeDefault"}
    container = {"name": "operator", "image": IMAGE, "securityContext": security}
    pod = {
        "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": profile},
        "containers": [container],
    }
    template = {"metadata": {"labels": labels}, "spec": pod}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    return {"metadata": {"name": NAME}, "spec": spec}


async def test_helm_test_names_each_defect_of_an_installation_until_it_is_mended(
    helm_test: HelmTest, api: Api, namespace: str
) -> None:
    place = f"the Deployment {NAME} in the namespace {namespace}"
    assert await helm_test.run() == f"the operator is not installed: {place} does not exist"

    await api.call("POST", DEPLOYMENTS.format(namespace), deployment())
    counts = "0 of 1 replicas of its newest version are ready"
    assert await helm_test.run() == f"the operator is not ready: {place}: {counts}"

    await make_pod_ready(api, namespace)
    success = f"jobs can be created in the namespace {namespace}, and the operator is ready"

    async def passes() -> bool:
        return await helm_test.run() == success

    await eventually(passes, "helm test succeeds")
    assert await api.list("ddpjobs", namespace) == []


async def test_helm_test_names_a_missing_crd(helm_test: HelmTest, api: Api) -> None:
    async with removed(api, CRD):

        async def names_it() -> bool:
            sentence = await helm_test.run()
            return sentence == "the CRD ddpjobs.ddp-trainer.dev is not installed"

        await eventually(names_it, "helm test names the CRD")


def test_api_server_accepts_the_manifest_of_an_installation_without_helm(
    control_plane: ControlPlane,
) -> None:
    """The API server checks each object with strict validation, and stores none."""
    text = build_install_manifest()
    applied = control_plane.cluster.kubectl("apply", "-f", "-", "--dry-run=server", input=text)
    lines = applied.stdout.splitlines()
    objects = [d for d in yaml.safe_load_all(text) if d]
    assert len(lines) == len(objects)
    assert all(line.endswith("(server dry run)") for line in lines), lines
