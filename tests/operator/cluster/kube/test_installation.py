"""The checks of `helm test` with an API server over real HTTP: one sentence for each defect."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio import client

from ddp_operator.api.job import parse_job
from ddp_operator.cluster.kube.installation import JOB, InstallationClient, InstallationError
from tests.operator.fake_api import FakeApi, refusal

DEPLOYMENT = ("ddp-system", "ddp-trainer")
PLACE = "the Deployment ddp-trainer in the namespace ddp-system"


@pytest.fixture
async def installation(api: FakeApi) -> AsyncIterator[InstallationClient]:
    made = InstallationClient(client.ApiClient(client.Configuration(host=api.address)), in_flight=1)
    yield made
    await made.close()


def serve_deployment(api: FakeApi, replicas: int, **status: int) -> None:
    """Let the API server have the operator's Deployment at generation 2."""
    document: dict[str, Any] = {
        "metadata": {"name": DEPLOYMENT[1], "generation": 2},
        "spec": {"replicas": replicas},
        "status": status,
    }

    def answer(request: web.Request) -> web.Response | None:
        found = request.path == "/apis/apps/v1/namespaces/ddp-system/deployments/ddp-trainer"
        return web.json_response(document) if found else None

    api.fault = answer


async def test_installation_check_creates_a_job_only_as_a_dry_run(
    api: FakeApi, installation: InstallationClient
) -> None:
    seen: list[dict[str, str]] = []

    def record(request: web.Request) -> None:
        seen.append(dict(request.query))

    api.fault = record
    await installation.check_jobs("team")
    assert api.requests == [("POST", "/apis/ddp-trainer.dev/v1alpha1/namespaces/team/ddpjobs")]
    assert seen == [{"dryRun": "All", "fieldValidation": "Strict"}]
    metadata = {**JOB["metadata"], "namespace": "team", "uid": "1", "generation": 1}
    metadata["creationTimestamp"] = "2026-01-01T00:00:00Z"
    assert parse_job({**JOB, "metadata": metadata}).spec.suspend


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (
            web.Response(status=404, text="404 page not found\n"),
            "the CRD ddpjobs.ddp-trainer.dev is not installed",
        ),
        (
            refusal(404, 'namespaces "team" not found'),
            'a DDPJob in the namespace team cannot be created: namespaces "team" not found',
        ),
        (
            refusal(403, "ddpjobs is forbidden"),
            "a DDPJob in the namespace team cannot be created: ddpjobs is forbidden",
        ),
    ],
    ids=["crd", "namespace", "forbidden"],
)
async def test_refused_job_is_reported_in_one_sentence(
    api: FakeApi, installation: InstallationClient, answer: web.Response, sentence: str
) -> None:
    api.fault = lambda _: answer
    with pytest.raises(InstallationError) as raised:
        await installation.check_jobs("team")
    assert str(raised.value) == sentence


READY = {"observedGeneration": 2, "updatedReplicas": 1}


@pytest.mark.parametrize(
    ("replicas", "status", "sentence"),
    [
        (1, {}, f"the operator is not ready: {PLACE}: 0 of 1"),
        (1, {**READY, "observedGeneration": 1}, f"the operator is not ready: {PLACE}: 0 of 1"),
        # The older replica is ready, and the newest one is not.
        (1, {**READY, "unavailableReplicas": 1}, f"{PLACE}: 0 of 1"),
        (3, {**READY, "unavailableReplicas": 2}, f"{PLACE}: 0 of 3"),
        (2, READY, f"{PLACE}: 1 of 2 replicas of its newest version are ready"),
        (0, {"observedGeneration": 2}, f"the operator does not run: {PLACE} has 0 replicas"),
    ],
    ids=["new", "old status", "rollout", "starting", "scaled", "none"],
)
async def test_operator_that_is_not_ready_is_reported_in_one_sentence(
    api: FakeApi,
    installation: InstallationClient,
    replicas: int,
    status: dict[str, int],
    sentence: str,
) -> None:
    serve_deployment(api, replicas, **status)
    with pytest.raises(InstallationError) as raised:
        await installation.check_operator(DEPLOYMENT)
    assert sentence in str(raised.value)


async def test_ready_operator_passes_the_installation_check(
    api: FakeApi, installation: InstallationClient
) -> None:
    serve_deployment(api, 1, **READY)
    await installation.check_operator(DEPLOYMENT)
    assert api.requests == [("GET", "/apis/apps/v1/namespaces/ddp-system/deployments/ddp-trainer")]


async def test_missing_or_unreadable_operator_is_reported_in_one_sentence(
    api: FakeApi, installation: InstallationClient
) -> None:
    with pytest.raises(InstallationError, match=r"is not installed: .* does not exist$"):
        await installation.check_operator(DEPLOYMENT)
    api.fault = lambda _: refusal(403, "deployments is forbidden")
    with pytest.raises(InstallationError, match=r"cannot be read: deployments is forbidden$"):
        await installation.check_operator(DEPLOYMENT)


@pytest.mark.slow
def test_command_without_an_api_server_ends_with_one_sentence(tmp_path: Path) -> None:
    api = FakeApi()
    api.address = "http://127.0.0.1:9"
    command = [sys.executable, "-m", "ddp_operator.check_installation", "--seconds=0"]
    arguments = ["--namespace=ddp-system", "--deployment=ddp-trainer", "--job-namespace=team"]
    done = subprocess.run(
        [*command, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "KUBECONFIG": str(api.kubeconfig(tmp_path))},
    )
    assert (done.returncode, done.stdout) == (1, "")
    begin = "ddp-trainer: a DDPJob in the namespace team cannot be created: the API server did not"
    assert done.stderr.startswith(begin)
    assert done.stderr.count("\n") == 1
