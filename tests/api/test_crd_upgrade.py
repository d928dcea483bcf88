"""Tests of a CRD that gains a field in an upgrade and loses it in a rollback."""

import copy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.api.client import Api, RefusedError, eventually, path_of
from tests.api.control_plane import ControlPlane
from tests.api.in_process_operator import OperatorEnvironment
from tests.api.kubelet import FakeAgents
from tests.api.simulated_job import SimulatedJob
from tests.operator.support import job_manifest
from tests.scenarios.flows import NAME

pytestmark = pytest.mark.api

CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/ddpjobs.ddp-trainer.dev"
FIELD = "novelty"


async def accepts_the_field(api: Api, namespace: str) -> bool:
    """Return whether the API server knows the field of the newer release."""
    job = {**job_manifest(**{FIELD: "x"}), "metadata": {"name": "probe"}}
    query = {"dryRun": "All", "fieldValidation": "Strict"}
    try:
        await api.call("POST", path_of("ddpjobs", namespace), job, query)
    except RefusedError:
        return False
    return True


@asynccontextmanager
async def newer_crd(api: Api, namespace: str) -> AsyncIterator[None]:
    """Give the spec and the status one more field until the end of the block."""
    version = (await api.call("GET", CRD))["spec"]["versions"][0]
    newer = copy.deepcopy(version)
    parts = newer["schema"]["openAPIV3Schema"]["properties"]
    for part in ("spec", "status"):
        parts[part]["properties"][FIELD] = {"type": "string"}
    await api.call("PATCH", CRD, {"spec": {"versions": [newer]}})
    try:
        await eventually(lambda: accepts_the_field(api, namespace), "the newer CRD is served")
        yield
    finally:
        await api.call("PATCH", CRD, {"spec": {"versions": [version]}})

        async def refuses() -> bool:
            return not await accepts_the_field(api, namespace)

        await eventually(refuses, "the CRD of this release is served again")


async def test_job_of_a_newer_release_runs_on_after_a_rollback(
    control_plane: ControlPlane, api: Api, agents: FakeAgents, namespace: str
) -> None:
    path = path_of("ddpjobs", namespace, NAME)
    async with newer_crd(api, namespace):
        manifest = {**job_manifest(nodes=2, **{FIELD: "x"}), "metadata": {"name": NAME}}
        await api.apply_job(namespace, manifest)
        await api.call("PATCH", f"{path}/status", {"status": {FIELD: "y"}})
        assert (await api.call("GET", path))["status"][FIELD] == "y"
    # Start the recorder only now, because a change of the CRD ends all watches of jobs.
    await eventually(lambda: serves(api, path), "the job is served again")
    rolled_back = await api.call("GET", path)
    assert FIELD not in {**rolled_back["spec"], **rolled_back.get("status", {})}
    async with OperatorEnvironment.of(control_plane, api, agents) as environment:
        await SimulatedJob(environment, namespace).run_until("Completed")


async def serves(api: Api, path: str) -> bool:
    """Return whether the API server answers for the job."""
    try:
        await api.call("GET", path)
    except RefusedError:
        return False
    return True
