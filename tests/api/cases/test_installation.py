"""Rights, CRD and namespaces that come and go beneath a running operator, or one that starts."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import yaml

from tests.api.cases.conftest import Front
from tests.api.client import Api, always, eventually, path_of
from tests.api.job import Job
from tests.api.operator_process import OperatorProcess
from tests.api.plane import OPERATOR, Plane
from tests.tools.install import RELEASE, ROOT

pytestmark = pytest.mark.api

CRD_FILE = ROOT / "manifests" / "crd" / "ddpjobs.yaml"
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/ddpjobs.ddp-trainer.dev"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
ROLE = f"{RBAC}/clusterroles/{RELEASE}"
NO_CRD = "the CRD ddpjobs.ddp-trainer.dev is not installed"
JSON = dict[str, Any]


@pytest.fixture
def lone_operator(front: Front, request: pytest.FixtureRequest) -> Iterator[OperatorProcess]:
    """An operator of the test's own, not started yet."""
    operator = front.operator(request.node.name[:12])
    yield operator
    operator.kill()


@asynccontextmanager
async def without(api: Api, path: str) -> AsyncIterator[None]:
    """A cluster-wide object is not there until the end of the block."""
    taken = await api.call("GET", path)
    await api.call("DELETE", path)
    await eventually(lambda: _absent(api, path), f"{path} is gone")
    try:
        yield
    finally:
        await restore(api, path, taken)


async def restore(api: Api, path: str, taken: JSON) -> None:
    """Create an object as it was."""
    kept = {
        k: taken["metadata"][k] for k in ("name", "labels", "annotations") if k in taken["metadata"]
    }
    body = {k: v for k, v in taken.items() if k != "status"} | {"metadata": kept}
    await api.call("POST", path.rpartition("/")[0], body)
    if path == CRD:
        await eventually(lambda: _served(api), "the CRD is served")


@asynccontextmanager
async def revoked(api: Api, resource: str, *verbs: str) -> AsyncIterator[None]:
    """The operator lacks rights until the end of the block."""
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


@pytest.mark.usefixtures("front")
async def test_case_44_a_job_goes_with_all_its_pods_when_the_operator_is_gone(
    api: Api, job: Job, lone_operator: OperatorProcess
) -> None:
    lone_operator.start()
    await lone_operator.ready()
    await job.train()
    assert "finalizers" not in (await job.read())["metadata"]
    lone_operator.kill()
    await api.call("DELETE", path_of("ddpjobs", job.namespace, job.name))

    async def gone() -> bool:
        await job.kubelet.finish_deletions()
        left = [await job.pods(), await api.list("ddpjobs", job.namespace)]
        services = await api.list("services", job.namespace)
        return not any([*left, services])

    await eventually(gone, "job, pods and Service are gone", 30)


async def test_case_45_a_namespace_that_is_deleted_while_a_job_runs_is_gone_soon_and_quietly(
    front: Front, operator: OperatorProcess, api: Api, job: Job, other_job: Job
) -> None:
    await job.train()
    await other_job.train()
    begun, said = time.monotonic(), len(operator.log)
    await api.call("DELETE", f"/api/v1/namespaces/{job.namespace}")

    async def gone() -> bool:
        await job.kubelet.finish_deletions()
        return await _absent(api, f"/api/v1/namespaces/{job.namespace}")

    await eventually(gone, "the namespace is gone", 60)
    assert "Traceback" not in operator.log[said:]
    refused = front.proxy.count(
        since=begun, verb="create", resource="pods", namespace=job.namespace
    )
    assert refused <= 16, "it tries to create pods in a namespace that ends, without pause"
    await other_job.fail_rank(0)
    await other_job.pods_of_attempt(2)


async def test_case_46_a_crd_that_is_deleted_and_comes_back_is_served_again(
    front: Front, api: Api, job: Job, lone_operator: OperatorProcess
) -> None:
    lone_operator.start()
    await lone_operator.ready()
    await job.train()
    process = lone_operator.process
    async with without(api, CRD):
        begun = time.monotonic()
        await eventually(lambda: lone_operator.says(503, NO_CRD), "it is not ready")
        await always(lambda: lone_operator.says(503, NO_CRD), "it is not ready", 3.0)
        asked = front.proxy.count(since=begun, resource="ddpjobs*")
        assert asked <= 10 + 2 * (time.monotonic() - begun), "it asks in a tight loop"
        await job.kubelet.finish_deletions()
    await job.kubelet.finish_deletions()
    await lone_operator.ready()
    await job.train()
    assert lone_operator.process is process
    assert "Traceback" not in lone_operator.log


async def test_case_47_a_crd_that_gains_a_field_and_loses_it_again_touches_no_pod(
    plane: Plane, operator: OperatorProcess, api: Api, job: Job
) -> None:
    await job.train()
    before = await job.uids()
    newer = yaml.safe_load(CRD_FILE.read_text(encoding="utf-8"))
    schema = newer["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["status"]["properties"]["moonPhase"] = {"type": "string"}
    schema["properties"]["spec"]["properties"]["tides"] = {"type": "integer"}
    kubectl = plane.cluster.kubectl
    try:
        await asyncio.to_thread(kubectl, "apply", "-f", "-", input=json.dumps(newer))
        path = path_of("ddpjobs", job.namespace, job.name)

        async def known() -> bool:
            await api.call("PATCH", f"{path}/status", {"status": {"moonPhase": "full"}})
            return (await job.status()).get("moonPhase") == "full"

        await eventually(known, "the new field is stored")
        await job.progress(step=5)
        await eventually(lambda: _shows_step(job, 5), "the operator goes on with the newer CRD")
    finally:
        await asyncio.to_thread(kubectl, "apply", "-f", str(CRD_FILE))

    async def pruned() -> bool:
        return "moonPhase" not in await job.status()

    await eventually(pruned, "the field is not read any more")
    await job.progress(step=6)
    await eventually(lambda: _shows_step(job, 6), "the operator goes on with the older CRD")
    assert await job.uids() == before
    assert (await job.status())["attempt"] == 1
    assert operator.alive


async def _shows_step(job: Job, step: int) -> bool:
    return bool((await job.status()).get("progress", {}).get("step") == step)


@pytest.mark.usefixtures("operator")
async def test_case_54_a_right_to_create_that_is_taken_away_is_named_and_heals(
    front: Front, api: Api, job: Job
) -> None:
    begun = time.monotonic()
    async with revoked(api, "pods", "create"):
        await job.create()
        await job.wait_for_message('cannot create resource "pods"')
        assert (await job.condition("PodsReady"))["reason"] == "NotPermitted"
        tried = front.proxy.count(since=begun, verb="create", resource="pods")
        assert tried <= 16, "it tries in a tight loop"
    await job.pods_of_attempt(1, seconds=60)


@pytest.mark.parametrize("seconds", [3.0, pytest.param(75.0, marks=pytest.mark.sweep)])
async def test_case_54_a_right_to_watch_that_is_taken_away_heals(
    front: Front, api: Api, operator: OperatorProcess, job: Job, seconds: float
) -> None:
    await job.train()
    process = operator.process
    async with revoked(api, "pods", "list", "watch"):
        await eventually(lambda: _is_forbidden(api, "watch", "pods"), "the right is gone")
        begun = time.monotonic()
        front.proxy.cut_watches()
        await job.fail_rank(0)
        await always(_lives(operator), "the operator lives", seconds)
        tried = front.proxy.count(since=begun, verb="watch", resource="pods")
        assert 1 <= tried <= 5 + seconds
    restored = time.monotonic()
    await job.pods_of_attempt(2, seconds=60)
    assert time.monotonic() - restored < 60.0
    assert operator.alive
    assert process is operator.process


async def _is_forbidden(api: Api, verb: str, resource: str) -> bool:
    """Whether the API server's authorizer has taken note."""
    asked = {"user": OPERATOR, "resourceAttributes": {"verb": verb, "resource": resource}}
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    review = await api.call("POST", path, {"spec": asked})
    return not review["status"]["allowed"]


def _lives(operator: OperatorProcess) -> Callable[[], Awaitable[bool]]:
    async def lives() -> bool:
        return operator.alive

    return lives


async def test_case_55_without_its_rights_it_is_not_ready_and_says_so_once_in_a_sentence(
    front: Front, api: Api, lone_operator: OperatorProcess
) -> None:
    async with without(api, f"{RBAC}/clusterrolebindings/{RELEASE}"):
        await _starts_unready(front, lone_operator, 'cannot list resource "')
    await lone_operator.ready(seconds=15)
    _says_nothing_twice(lone_operator)


async def test_case_55_without_its_crd_it_is_not_ready_and_says_so_once_in_a_sentence(
    front: Front, api: Api, lone_operator: OperatorProcess
) -> None:
    async with without(api, CRD):
        await _starts_unready(front, lone_operator, NO_CRD)
    await lone_operator.ready(seconds=15)
    _says_nothing_twice(lone_operator)


def _says_nothing_twice(operator: OperatorProcess) -> None:
    said = [line.partition(" WARNING ")[2] for line in operator.log.splitlines()]
    sentences = [sentence for sentence in said if "not ready, jobs and pods" in sentence]
    assert len(set(sentences)) == len(sentences) <= 3, sentences


async def _starts_unready(front: Front, operator: OperatorProcess, words: str) -> None:
    operator.start()
    await eventually(lambda: operator.says(503, words), f"not ready, since {words}", 20)
    begun = time.monotonic()
    await always(lambda: operator.says(503, words), f"not ready, since {words}", 5.0)
    assert front.proxy.count(since=begun) <= 20, "it asks in a tight loop"
    assert operator.alive
    assert "Traceback" not in operator.log
