"""Tests of what the API server itself rejects, and of edits of a running job."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ddp_operator.api.job import parse_job
from ddp_operator.api.rules import CLAIM_RULE_MESSAGE, MANAGED_BY_RULE_MESSAGE, MAX_NAME_LENGTH
from ddp_operator.builders.pod import build_pod
from tests.api.client import Api, RefusedError, eventually, path_of
from tests.api.control_plane import ControlPlane
from tests.api.in_process_operator import OperatorEnvironment
from tests.api.invariants import violations
from tests.api.kubelet import FakeAgents
from tests.api.simulated_job import SimulatedJob
from tests.operator.api.placement_cases import PLACED, PLACED_WITH_TEMPLATE
from tests.operator.support import DEFAULTS, job_manifest
from tests.scenarios.flows import NAME

pytestmark = pytest.mark.api

CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/ddpjobs.ddp-trainer.dev"
TASK = {"task": "flowers:build"}
LEGAL_NAMES = ["a", "a-1", "x" * MAX_NAME_LENGTH]
ILLEGAL_NAMES = ["x" * (MAX_NAME_LENGTH + 1), "x" * 63, "x" * 64, "x" * 253, "1a", "a.b"]
INVALID: dict[str, tuple[dict[str, Any], str]] = {
    "zero-nodes": ({**TASK, "nodes": 0}, "spec.nodes"),
    "negative-nodes": ({**TASK, "nodes": -1}, "spec.nodes"),
    "too-many-nodes": ({**TASK, "nodes": 10000}, "spec.nodes"),
    "nodes-over-64-bit": ({**TASK, "nodes": 2**63}, "spec.nodes"),
    "nodes-as-text": ({**TASK, "nodes": "two"}, "spec.nodes"),
    "empty-image": ({**TASK, "image": ""}, "spec.image"),
    "task-without-function": ({"task": "flowers"}, "spec.task"),
    "invalid-quantity": (
        {**TASK, "resources": {"limits": {"memory": "lots"}}},
        "spec.resources.limits.memory",
    ),
    "duplicate-variable": ({**TASK, "env": [{"name": "A"}, {"name": "A"}]}, "spec.env[1]"),
    "reserved-variable": ({**TASK, "env": [{"name": "DDP_ATTEMPT"}]}, "spec.env"),
    "unknown-field": ({**TASK, "replicas": 2}, "spec.replicas"),
    **{
        f"reserved-{field}-of-the-pod": (
            {**TASK, "podTemplate": {"spec": {field: value}}},
            f"spec.podTemplate.spec.{field}",
        )
        for field, value in [("hostname", "a"), ("restartPolicy", "Always"), ("subdomain", 1)]
    },
    "unknown-policy": ({**TASK, "cleanPodPolicy": "Some"}, "spec.cleanPodPolicy"),
    "negative-deadline": ({**TASK, "activeDeadlineSeconds": -1}, "spec.activeDeadlineSeconds"),
    "task-and-command": ({**TASK, "command": ["a"]}, "spec: task and command must not both be set"),
    "neither-task-nor-command": ({}, "spec: one of task and command must be set"),
    "controller-without-a-domain": ({**TASK, "managedBy": "multikueue"}, "spec.managedBy"),
    "topology-key-of-no-label": ({**TASK, "topology": {"key": "a b"}}, "spec.topology.key"),
    "unknown-topology-mode": (
        {**TASK, "topology": {"key": "rack", "mode": "Hard"}},
        "spec.topology.mode",
    ),
    "gpu-product-of-no-label": (
        {**TASK, "gpusPerNode": 1, "gpuProduct": "NVIDIA L4"},
        "spec.gpuProduct",
    ),
    "gpu-product-without-gpus": ({**TASK, "gpuProduct": "NVIDIA-L4"}, "spec.gpuProduct"),
    "one-and-many-kubernetes-nodes": (
        {**TASK, "exclusiveNodes": True, "topology": {"key": "kubernetes.io/hostname"}},
        "spec.topology.key",
    ),
    "rdma-with-ethernet": (
        {**TASK, "network": {"profile": "Ethernet", "rdma": {"resource": "rdma/a"}}},
        "spec.network.rdma",
    ),
    "claim-and-claim-template": (
        {**TASK, "checkpoint": {"claimName": "a", "claimTemplate": {"size": "1Gi"}}},
        "spec.checkpoint: one of",
    ),
    "claim-for-one-of-two-pods": (
        {
            **TASK,
            "nodes": 2,
            "checkpoint": {"claimTemplate": {"size": 1, "accessModes": ["ReadWriteOnce"]}},
        },
        "spec.checkpoint.claimTemplate.accessModes",
    ),
    "unknown-network-profile": ({**TASK, "network": {"profile": "EFA"}}, "spec.network.profile"),
}
MANAGERS: dict[str, tuple[str | None, str | None]] = {
    "given-away": (None, "kueue.x-k8s.io/multikueue"),
    "taken": ("kueue.x-k8s.io/multikueue", None),
    "changed": ("kueue.x-k8s.io/multikueue", "ddp-trainer.dev/operator"),
}


async def test_edit_of_the_pod_spec_starts_an_attempt_without_a_charge(
    environment: OperatorEnvironment, namespace: str
) -> None:
    """docs/develop/decisions/0005-editing-a-job.md explains why such an edit is allowed."""
    simulated = SimulatedJob(environment, namespace)
    await simulated.apply()
    await simulated.run_until("Running")
    before = {pod["metadata"]["uid"] for pod in await simulated.pods()}
    await simulated.edit(image="example/other:2", nodes=3)
    operator = simulated.new_operator()
    await operator.reconcile_until_idle()
    await simulated.run_until("Running", operator)
    pods = await simulated.pods()
    assert not before & {pod["metadata"]["uid"] for pod in pods}
    images = [pod["spec"]["containers"][0]["image"] for pod in pods]
    assert images == ["example/other:2"] * 3
    status = await simulated.status()
    assert (status["attempt"], status["freeRestarts"], status["restarts"]) == (2, 1, 0)
    await simulated.run_until("Completed", operator)
    assert violations(await environment.history(namespace)) == []


@pytest.mark.parametrize(("spec", "where"), INVALID.values(), ids=INVALID.keys())
async def test_api_server_rejects_invalid_spec_and_names_the_field(
    api: Api, namespace: str, spec: dict[str, Any], where: str
) -> None:
    job = {**job_manifest(NAME), "metadata": {"name": NAME}, "spec": spec}
    with pytest.raises(RefusedError, match=re.escape(where)):
        await api.apply_job(namespace, job)


@pytest.mark.parametrize(("old", "new"), MANAGERS.values(), ids=MANAGERS.keys())
async def test_api_server_rejects_a_change_of_the_controller(
    api: Api, namespace: str, old: str | None, new: str | None
) -> None:
    spec = TASK if old is None else {**TASK, "managedBy": old}
    job = {**job_manifest(NAME), "metadata": {"name": NAME}, "spec": spec}
    await api.apply_job(namespace, job)
    await api.edit_job(namespace, NAME, {"suspend": True})
    with pytest.raises(RefusedError, match=re.escape(MANAGED_BY_RULE_MESSAGE)):
        await api.edit_job(namespace, NAME, {"managedBy": new})


@pytest.mark.parametrize(
    "change", [{"storageClassName": "fast"}, {"accessModes": ["ReadWriteOnce"]}]
)
async def test_api_server_rejects_a_change_of_the_class_and_modes_of_a_claim(
    api: Api, namespace: str, change: dict[str, Any]
) -> None:
    spec = {**TASK, "checkpoint": {"claimTemplate": {"size": "1Gi"}}}
    job = {**job_manifest(NAME), "metadata": {"name": NAME}, "spec": spec}
    await api.apply_job(namespace, job)
    larger = {"size": "2Gi", "whenDeleted": "Delete"}
    await api.edit_job(namespace, NAME, {"checkpoint": {"claimTemplate": larger}})
    with pytest.raises(RefusedError, match=re.escape(CLAIM_RULE_MESSAGE)):
        await api.edit_job(namespace, NAME, {"checkpoint": {"claimTemplate": larger | change}})


@asynccontextmanager
async def older_crd(api: Api, namespace: str) -> AsyncIterator[None]:
    """Remove the CRD's rules for the spec until the end of the block."""
    crd = await api.call("GET", CRD)
    version = crd["spec"]["versions"][0]
    lenient = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = version["schema"]["openAPIV3Schema"]
    old = {**schema, "properties": {**schema["properties"], "spec": lenient}}
    await api.call("PATCH", CRD, {"spec": {"versions": [_with(version, old)]}})
    try:
        await eventually(
            lambda: _accepts_invalid_job(api, namespace), "the API server uses the older CRD"
        )
        yield
    finally:
        await api.call("PATCH", CRD, {"spec": {"versions": [version]}})

        async def refuses() -> bool:
            return not await _accepts_invalid_job(api, namespace)

        await eventually(refuses, "the API server uses the current CRD again")


def _with(version: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    return {**version, "schema": {"openAPIV3Schema": schema}}


async def _accepts_invalid_job(api: Api, namespace: str) -> bool:
    """Return whether the API server accepts an invalid job."""
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


async def test_operator_marks_invalid_job_of_an_older_crd_and_does_not_retry(
    control_plane: ControlPlane, api: Api, agents: FakeAgents, namespace: str
) -> None:
    async with older_crd(api, namespace):
        job = {**job_manifest(NAME), "metadata": {"name": NAME}, "spec": {"nodes": 0, **TASK}}
        await api.apply_job(namespace, job)
    # Start the recorder only now, because a change of the CRD ends all watches of jobs.
    await eventually(lambda: serves_jobs(api, namespace), "jobs are served again")
    async with OperatorEnvironment.of(control_plane, api, agents) as environment:
        simulated = SimulatedJob(environment, namespace)
        operator = simulated.new_operator()
        await operator.reconcile_until_idle()
        reason, message = await simulated.summary()
        assert reason == "Invalid"
        assert message.startswith("spec.nodes: ")
        assert await operator.controller.reconcile(operator.key) is None
        assert await simulated.pods() == []
        await simulated.edit(nodes=1)
        await simulated.run_until("Completed", operator)


@pytest.mark.parametrize("name", ILLEGAL_NAMES, ids=lambda name: f"{name[:3]}-{len(name)}")
async def test_api_server_rejects_name_that_is_illegal_for_pods(
    api: Api, namespace: str, name: str
) -> None:
    job = {**job_manifest(), "metadata": {"name": name}}
    with pytest.raises(RefusedError, match=r"metadata\.name"):
        await api.apply_job(namespace, job)


@pytest.mark.parametrize("name", LEGAL_NAMES, ids=len)
async def test_legal_job_name_yields_legal_pod_names_and_labels(
    api: Api, namespace: str, name: str
) -> None:
    """Check the last pod of the largest job, which has the longest names and labels."""
    made = await api.apply_job(namespace, {**job_manifest(nodes=9999), "metadata": {"name": name}})
    pod = build_pod(parse_job(made), 9998, 1, DEFAULTS)
    assert len(pod["spec"]["hostname"]) == len(name) + 5
    await api.call("POST", path_of("pods", namespace), pod, {"dryRun": "All"})


@pytest.mark.parametrize("name", [*PLACED, *PLACED_WITH_TEMPLATE])
async def test_api_server_accepts_the_pods_of_each_placement(
    api: Api, namespace: str, name: str
) -> None:
    spec = (PLACED | PLACED_WITH_TEMPLATE)[name]
    job = {**job_manifest(NAME, **spec), "metadata": {"name": NAME}}
    made = await api.apply_job(namespace, job)
    pod = build_pod(parse_job(made), 0, 1, DEFAULTS)
    strict = {"dryRun": "All", "fieldValidation": "Strict"}
    await api.call("POST", path_of("pods", namespace), pod, strict)
