"""What the API server itself refuses, and with which words; what an edit of a running job does."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ddp_operator.api.job import parse_job
from ddp_operator.api.rules import NAME_LENGTH
from ddp_operator.builders.pod import build_pod
from tests.api.bench import Bench
from tests.api.client import Api, RefusedError, eventually, path_of
from tests.api.invariants import violations
from tests.api.kubelet import Agents
from tests.api.plane import Plane
from tests.api.stage import Stage
from tests.operator.support import DEFAULTS, job_manifest
from tests.scenarios.flows import NAME

pytestmark = pytest.mark.api

CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/ddpjobs.ddp-trainer.dev"
TASK = {"task": "flowers:build"}
LEGAL_NAMES = ["a", "a-1", "x" * NAME_LENGTH]
ILLEGAL_NAMES = ["x" * (NAME_LENGTH + 1), "x" * 63, "x" * 64, "x" * 253, "1a", "a.b"]
INVALID: dict[str, tuple[dict[str, Any], str]] = {
    "no node": ({**TASK, "nodes": 0}, "spec.nodes"),
    "fewer than none": ({**TASK, "nodes": -1}, "spec.nodes"),
    "too many nodes": ({**TASK, "nodes": 10000}, "spec.nodes"),
    "nodes beyond an integer": ({**TASK, "nodes": 2**63}, "spec.nodes"),
    "nodes in words": ({**TASK, "nodes": "two"}, "spec.nodes"),
    "an empty image": ({**TASK, "image": ""}, "spec.image"),
    "a task without a function": ({"task": "flowers"}, "spec.task"),
    "a quantity of nothing": (
        {**TASK, "resources": {"limits": {"memory": "lots"}}},
        "spec.resources.limits.memory",
    ),
    "a variable stated twice": ({**TASK, "env": [{"name": "A"}, {"name": "A"}]}, "spec.env[1]"),
    "a variable of the product's": ({**TASK, "env": [{"name": "DDP_ATTEMPT"}]}, "spec.env"),
    "an unknown field": ({**TASK, "replicas": 2}, "spec.replicas"),
    "an unknown policy": ({**TASK, "cleanPodPolicy": "Some"}, "spec.cleanPodPolicy"),
    "a time below none": ({**TASK, "activeDeadlineSeconds": -1}, "spec.activeDeadlineSeconds"),
    "task and command": ({**TASK, "command": ["a"]}, "spec: task and command exclude"),
    "nothing to run": ({}, "spec: one of task and command must be stated"),
}


async def test_case_37_an_edit_of_what_pods_are_made_of_is_a_new_attempt_at_no_cost(
    bench: Bench, namespace: str
) -> None:
    """docs/decisions/0005-editing-a-job.md: such an edit is no error here."""
    stage = Stage(bench, namespace)
    await stage.apply()
    await stage.until("Running")
    before = {pod["metadata"]["uid"] for pod in await stage.pods()}
    await stage.edit(image="example/other:2", nodes=3)
    operator = stage.operator()
    await operator.settle()
    await stage.until("Running", operator)
    pods = await stage.pods()
    assert not before & {pod["metadata"]["uid"] for pod in pods}
    images = [pod["spec"]["containers"][0]["image"] for pod in pods]
    assert images == ["example/other:2"] * 3
    status = await stage.status()
    assert (status["attempt"], status["freeRestarts"], status["restarts"]) == (2, 1, 0)
    await stage.until("Completed", operator)
    assert violations(await bench.history(namespace)) == []


@pytest.mark.parametrize(("spec", "where"), INVALID.values(), ids=INVALID.keys())
async def test_case_40_an_invalid_spec_is_refused_with_the_name_of_its_field(
    api: Api, namespace: str, spec: dict[str, Any], where: str
) -> None:
    job = {**job_manifest(NAME), "metadata": {"name": NAME}, "spec": spec}
    with pytest.raises(RefusedError, match=re.escape(where)):
        await api.apply_job(namespace, job)


@asynccontextmanager
async def older_crd(api: Api, namespace: str) -> AsyncIterator[None]:
    """The CRD knows no rules for the spec; afterwards it knows them again."""
    crd = await api.call("GET", CRD)
    version = crd["spec"]["versions"][0]
    lenient = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = version["schema"]["openAPIV3Schema"]
    old = {**schema, "properties": {**schema["properties"], "spec": lenient}}
    await api.call("PATCH", CRD, {"spec": {"versions": [_with(version, old)]}})
    try:
        await eventually(lambda: _takes(api, namespace), "the older CRD is served")
        yield
    finally:
        await api.call("PATCH", CRD, {"spec": {"versions": [version]}})

        async def refuses() -> bool:
            return not await _takes(api, namespace)

        await eventually(refuses, "the CRD is served again")


def _with(version: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    return {**version, "schema": {"openAPIV3Schema": schema}}


async def _takes(api: Api, namespace: str) -> bool:
    """Whether a job without anything to run is taken."""
    job = {**job_manifest("probe"), "metadata": {"name": "probe"}, "spec": {"nodes": 0}}
    try:
        await api.call("POST", path_of("ddpjobs", namespace), job, {"dryRun": "All"})
    except RefusedError:
        return False
    return True


async def serves_jobs(api: Api, namespace: str) -> bool:
    try:
        await api.call("GET", path_of("ddpjobs", namespace))
    except RefusedError:
        return False
    return True


async def test_case_40_an_invalid_job_that_an_older_crd_let_in_is_told_so_and_not_tried_again(
    plane: Plane, api: Api, agents: Agents, namespace: str
) -> None:
    async with older_crd(api, namespace):
        job = {**job_manifest(NAME), "metadata": {"name": NAME}, "spec": {"nodes": 0, **TASK}}
        await api.apply_job(namespace, job)
    # Only now: a change of the CRD ends all watches of jobs, and for a moment they are not served.
    await eventually(lambda: serves_jobs(api, namespace), "jobs are served again")
    async with Bench.of(plane, api, agents) as bench:
        stage = Stage(bench, namespace)
        operator = stage.operator()
        await operator.settle()
        reason, message = await stage.summary()
        assert reason == "Invalid"
        assert message.startswith("spec.nodes: ")
        assert await operator.controller.reconcile(operator.key) is None
        assert await stage.pods() == []
        await stage.edit(nodes=1)
        await stage.until("Completed", operator)


@pytest.mark.parametrize("name", ILLEGAL_NAMES, ids=lambda name: f"{name[:3]}-{len(name)}")
async def test_case_41_a_name_that_pods_cannot_carry_is_refused(
    api: Api, namespace: str, name: str
) -> None:
    job = {**job_manifest(), "metadata": {"name": name}}
    with pytest.raises(RefusedError, match=r"metadata\.name"):
        await api.apply_job(namespace, job)


@pytest.mark.parametrize("name", LEGAL_NAMES, ids=len)
async def test_case_41_a_legal_name_is_one_for_all_that_is_named_after_it(
    api: Api, namespace: str, name: str
) -> None:
    """The last pod of the largest job has the longest names: the server takes it and its labels."""
    made = await api.apply_job(namespace, {**job_manifest(nodes=9999), "metadata": {"name": name}})
    pod = build_pod(parse_job(made), 9998, 1, DEFAULTS)
    assert len(pod["spec"]["hostname"]) == len(name) + 5
    await api.call("POST", path_of("pods", namespace), pod, {"dryRun": "All"})
