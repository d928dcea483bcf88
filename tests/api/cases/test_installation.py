"""Tests of permissions, CRD and namespaces that disappear and return under an operator."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
import yaml

from tests.api.cases.conftest import OperatorLauncher
from tests.api.client import Api, always, eventually, path_of
from tests.api.control_plane import OPERATOR, ControlPlane
from tests.api.job import Job
from tests.api.operator_process import WATCHED, OperatorProcess
from tests.harness.install import RELEASE, ROOT

pytestmark = pytest.mark.api

CRD_FILE = ROOT / "manifests" / "crd" / "ddpjobs.yaml"
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/ddpjobs.ddp-trainer.dev"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
ROLE = f"{RBAC}/clusterroles/{RELEASE}"
NO_CRD = "the CRD ddpjobs.ddp-trainer.dev is not installed"
JSON = dict[str, Any]


@pytest.fixture
def separate_operator(
    launcher: OperatorLauncher, request: pytest.FixtureRequest
) -> Iterator[OperatorProcess]:
    """Yield an operator for this test alone, not started yet."""
    operator = launcher.operator(request.node.name[:12])
    yield operator
    operator.kill()


@asynccontextmanager
async def removed(api: Api, path: str) -> AsyncIterator[None]:
    """Delete a cluster-wide object until the end of the block."""
    taken = await api.call("GET", path)
    await api.call("DELETE", path)
    await eventually(lambda: _absent(api, path), f"{path} is deleted")
    try:
        yield
    finally:
        await restore(api, path, taken)


async def restore(api: Api, path: str, taken: JSON) -> None:
    """Create a deleted object again."""
    kept = {
        k: taken["metadata"][k] for k in ("name", "labels", "annotations") if k in taken["metadata"]
    }
    body = {k: v for k, v in taken.items() if k != "status"} | {"metadata": kept}
    await api.call("POST", path.rpartition("/")[0], body)
    if path == CRD:
        await eventually(lambda: _served(api), "the CRD is Established")


@asynccontextmanager
async def revoked(api: Api, resource: str, *verbs: str) -> AsyncIterator[None]:
    """Remove permissions from the operator until the end of the block."""
    rules = (await api.call("GET", ROLE))["rules"]
    fewer = [
        {**r, "verbs": [v for v in r["verbs"] if v not in verbs]}
        if resource in r["resources"]
        else r
        for r in rules
    ]
    assert fewer != rules
    await api.call("PATCH", ROLE, {"rules": fewer})
    try:
        yield
    finally:
        await api.call("PATCH", ROLE, {"rules": rules})


async def _absent(api: Api, path: str) -> bool:
    return await api.find(path) is None


async def _served(api: Api) -> bool:
    crd = await api.call("GET", CRD)
    conditions = {c["type"]: c["status"] for c in crd.get("status", {}).get("conditions") or []}
    return conditions.get("Established") == "True"


@pytest.mark.usefixtures("launcher")
async def test_deleting_a_job_without_an_operator_deletes_its_children(
    api: Api, job: Job, separate_operator: OperatorProcess
) -> None:
    separate_operator.start()
    await separate_operator.wait_until_ready()
    await job.train()
    assert "finalizers" not in (await job.read())["metadata"]
    separate_operator.kill()
    await api.call("DELETE", path_of("ddpjobs", job.namespace, job.name))

    async def gone() -> bool:
        await job.kubelet.finish_deletions()
        left = [await job.pods(), await api.list("ddpjobs", job.namespace)]
        left += [await api.list(k, job.namespace) for k in ("services", "networkpolicies")]
        return not any(left)

    await eventually(gone, "the job and its children are deleted", 30)


async def test_namespace_of_a_running_job_is_deleted_fast_and_without_errors(
    launcher: OperatorLauncher, operator: OperatorProcess, api: Api, job: Job, other_job: Job
) -> None:
    await job.train()
    await other_job.train()
    started, log_length = time.monotonic(), len(operator.log)
    await api.call("DELETE", f"/api/v1/namespaces/{job.namespace}")

    async def gone() -> bool:
        await job.kubelet.finish_deletions()
        return await _absent(api, f"/api/v1/namespaces/{job.namespace}")

    await eventually(gone, "the namespace is deleted", 60)
    assert "Traceback" not in operator.log[log_length:]
    refused = launcher.proxy.count(
        since=started, verb="create", resource="pods", namespace=job.namespace
    )
    assert refused <= 16, "the operator creates pods in a terminating namespace without backoff"
    await other_job.fail_rank(0)
    await other_job.pods_of_attempt(2)


async def test_operator_serves_jobs_again_after_the_crd_was_deleted_and_restored(
    launcher: OperatorLauncher, api: Api, job: Job, separate_operator: OperatorProcess
) -> None:
    separate_operator.start()
    await separate_operator.wait_until_ready()
    await job.train()
    process = separate_operator.process
    async with removed(api, CRD):
        started = time.monotonic()
        await eventually(
            lambda: separate_operator.answers(503, NO_CRD), "the operator is not ready"
        )
        await always(
            lambda: separate_operator.answers(503, NO_CRD), "the operator is not ready", 3.0
        )
        sent = launcher.proxy.count(since=started, resource="ddpjobs*")
        assert sent <= 10 + 2 * (time.monotonic() - started), (
            "the operator sends requests without backoff"
        )
        await job.kubelet.finish_deletions()
    await job.kubelet.finish_deletions()
    await separate_operator.wait_until_ready()
    await job.train()
    assert separate_operator.process is process
    assert "Traceback" not in separate_operator.log


async def test_crd_upgrade_and_downgrade_restart_no_pod(
    control_plane: ControlPlane, operator: OperatorProcess, api: Api, job: Job
) -> None:
    await job.train()
    before = await job.uids()
    newer = yaml.safe_load(CRD_FILE.read_text(encoding="utf-8"))
    schema = newer["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["status"]["properties"]["newStatusField"] = {"type": "string"}
    schema["properties"]["spec"]["properties"]["newSpecField"] = {"type": "integer"}
    kubectl = control_plane.cluster.kubectl
    try:
        await asyncio.to_thread(kubectl, "apply", "-f", "-", input=json.dumps(newer))
        path = path_of("ddpjobs", job.namespace, job.name)

        async def known() -> bool:
            await api.call("PATCH", f"{path}/status", {"status": {"newStatusField": "full"}})
            return (await job.status()).get("newStatusField") == "full"

        await eventually(known, "the API server stores the new field")
        await job.report_progress(step=5)
        await eventually(
            lambda: job.shows_step(5), "the operator updates progress with the newer CRD"
        )
    finally:
        await asyncio.to_thread(kubectl, "apply", "-f", str(CRD_FILE))

    async def pruned() -> bool:
        return "newStatusField" not in await job.status()

    await eventually(pruned, "the API server drops the field")
    await job.report_progress(step=6)
    await eventually(lambda: job.shows_step(6), "the operator updates progress with the older CRD")
    assert await job.uids() == before
    assert (await job.status())["attempt"] == 1
    assert operator.alive


@pytest.mark.usefixtures("operator")
async def test_operator_reports_a_missing_create_permission_and_recovers(
    launcher: OperatorLauncher, api: Api, job: Job
) -> None:
    started = time.monotonic()
    async with revoked(api, "pods", "create"):
        await job.create()
        await job.wait_for_message('cannot create resource "pods"')
        assert (await job.condition("PodsReady"))["reason"] == "NotPermitted"
        creations = launcher.proxy.count(since=started, verb="create", resource="pods")
        assert creations <= 16, "the operator retries without backoff"
    await job.pods_of_attempt(1, seconds=60)


@pytest.mark.parametrize("seconds", [3.0, pytest.param(75.0, marks=pytest.mark.sweep)])
async def test_operator_recovers_when_a_revoked_watch_permission_is_granted_again(
    launcher: OperatorLauncher, api: Api, operator: OperatorProcess, job: Job, seconds: float
) -> None:
    await job.train()
    process = operator.process
    async with revoked(api, "pods", "list", "watch"):
        await eventually(lambda: _is_forbidden(api, "watch", "pods"), "the permission is revoked")
        started = time.monotonic()
        launcher.proxy.cut_watches()
        await job.fail_rank(0)
        await always(_alive_check(operator), "the operator is alive", seconds)
        creations = launcher.proxy.count(since=started, verb="watch", resource="pods")
        assert 1 <= creations <= 5 + seconds
    restored = time.monotonic()
    await job.pods_of_attempt(2, seconds=60)
    assert time.monotonic() - restored < 60.0
    assert operator.alive
    assert process is operator.process


async def _is_forbidden(api: Api, verb: str, resource: str) -> bool:
    """Return whether the API server's authorizer denies the request to the operator."""
    request = {"user": OPERATOR, "resourceAttributes": {"verb": verb, "resource": resource}}
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    review = await api.call("POST", path, {"spec": request})
    return not review["status"]["allowed"]


def _alive_check(operator: OperatorProcess) -> Callable[[], Awaitable[bool]]:
    async def is_alive() -> bool:
        return operator.alive

    return is_alive


async def test_operator_without_permissions_is_not_ready_and_logs_the_reason_once(
    launcher: OperatorLauncher, api: Api, separate_operator: OperatorProcess
) -> None:
    async with removed(api, f"{RBAC}/clusterrolebindings/{RELEASE}"):
        await _check_unready_start(launcher, separate_operator, 'cannot list resource "')
    await separate_operator.wait_until_ready(seconds=15)
    _check_no_repeated_warning(separate_operator)


async def test_operator_without_its_crd_is_not_ready_and_logs_the_reason_once(
    launcher: OperatorLauncher, api: Api, separate_operator: OperatorProcess
) -> None:
    async with removed(api, CRD):
        await _check_unready_start(launcher, separate_operator, NO_CRD)
    await separate_operator.wait_until_ready(seconds=15)
    _check_no_repeated_warning(separate_operator)


def _check_no_repeated_warning(operator: OperatorProcess) -> None:
    warnings = [line.partition(" WARNING ")[2] for line in operator.log.splitlines()]
    sentences = [sentence for sentence in warnings if "not ready, jobs and pods" in sentence]
    # While a CRD appears, the API server may refuse, miss and refuse it by turns.
    assert all(one != other for one, other in pairwise(sentences)), sentences
    assert len(sentences) <= 4, sentences


async def _check_unready_start(
    launcher: OperatorLauncher, operator: OperatorProcess, text: str
) -> None:
    operator.start()
    await eventually(lambda: operator.answers(503, text), f"not ready because {text}", 20)
    started = time.monotonic()
    await always(lambda: operator.answers(503, text), f"not ready because {text}", 5.0)
    requests = launcher.proxy.count(since=started)
    # At most five lists of each kind, and as many requests for the Lease.
    assert requests <= 5 * (len(WATCHED) + 1), "the operator sends requests without backoff"
    assert operator.alive
    assert "Traceback" not in operator.log
