"""Init steps on a real API server: their pods, restarts of the operator, and the policy."""

from typing import Any

import pytest

from ddp_operator.api.job import parse_job
from ddp_operator.builders.defaults import Defaults
from ddp_operator.builders.init_pod import build_init_pod
from ddp_wire import contract
from tests.api.client import Api, path_of
from tests.api.control_plane import ControlPlane
from tests.api.in_process_operator import OperatorEnvironment
from tests.api.invariants import violations
from tests.api.mutations import changed
from tests.api.simulated_job import SimulatedJob
from tests.api.test_operator_policy import refusal, strict_release
from tests.operator.support import job_manifest
from tests.scenarios.flows import NAME
from tests.scenarios.pods import Script

pytestmark = pytest.mark.api

JSON = dict[str, Any]
STEPS: list[JSON] = [
    {"name": "fetch", "image": "example/fetch:1", "command": ["fetch"]},
    {"name": "convert", "task": "my_package.data:convert"},
]
FIRST = f"{NAME}-init-fetch-1"


async def test_each_operator_continues_the_steps_where_the_last_one_stopped(
    environment: OperatorEnvironment, namespace: str
) -> None:
    script = Script(failed_tries=frozenset({FIRST}))
    job = SimulatedJob(environment, namespace, script)
    await job.apply(init=STEPS)
    for _ in range(20):
        await job.new_operator().reconcile_until_idle()  # A new process in each second.
        if (await job.summary())[0] == "Running":
            break
        await job.advance()
    pods = {p["metadata"]["name"]: p for p in await job.pods()}
    steps = {name: p["status"]["phase"] for name, p in pods.items() if "-init-" in name}
    assert steps == {
        FIRST: "Failed",
        f"{NAME}-init-fetch-2": "Succeeded",
        f"{NAME}-init-convert-1": "Succeeded",
    }
    status = await job.status()
    assert (status["init"]["completed"], status["attempt"], status["replicas"]) == (2, 1, 2)
    await job.edit(image="example/other:2")
    operator = job.new_operator()
    await operator.reconcile_until_idle()
    await job.run_until("Running", operator)
    assert (await job.status())["init"] == status["init"]
    await job.run_until("Completed", operator)
    assert violations(await environment.history(namespace)) == []


async def test_suspension_deletes_the_pod_of_a_step(
    environment: OperatorEnvironment, namespace: str
) -> None:
    job = SimulatedJob(environment, namespace)
    await job.apply(init=STEPS)
    operator = job.new_operator()
    await operator.reconcile_until_idle()
    assert [p["metadata"]["name"] for p in await job.pods()] == [FIRST]
    await job.edit(suspend=True)
    await operator.reconcile_until_idle()
    await job.kubelet.finish_deletions()
    await operator.reconcile_until_idle()
    assert await job.pods() == []
    await job.edit(suspend=False)
    await job.advance()  # The next try waits for a second.
    await operator.reconcile_until_idle()
    assert [p["metadata"]["name"] for p in await job.pods()] == [f"{NAME}-init-fetch-2"]


@pytest.mark.parametrize("policy", ["scheduling", "off"])
async def test_policy_lets_the_operator_create_the_pod_of_a_step_and_no_other(
    control_plane: ControlPlane, api: Api, namespace: str, policy: str
) -> None:
    admin = {"metadata": {"name": "admin"}}
    await api.call("POST", path_of("serviceaccounts", namespace), admin)
    flags = (f"podTemplate={policy}",)
    async with strict_release(control_plane, namespace, *flags) as (operator, defaults):
        path = path_of("pods", namespace)
        pods = built(namespace, defaults)
        for pod in pods:
            assert await refusal(operator, "POST", path, pod) == "", pod["metadata"]["name"]
        for name, wrong in wrong_pods(pods[0]):
            assert await refusal(operator, "POST", path, wrong) != "", name


def built(namespace: str, defaults: Defaults) -> list[JSON]:
    """Return the pods of steps that set all fields."""
    whole = {**STEPS[0], "env": [{"name": "A"}], "resources": {"limits": {"cpu": 1}}}
    given = job_manifest(
        init=[whole, STEPS[1]],
        checkpoint={"claimName": "shared"},
        config={"a": 1},
        nodeSelector={"pool": "cpu"},
        volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        volumeMounts=[{"name": "data", "mountPath": "/data"}],
    )
    given["metadata"] |= {"namespace": namespace}
    job = parse_job(given)
    return [build_init_pod(job, step, 1, defaults) for step in job.spec.init or []]


def wrong_pods(pod: JSON) -> list[tuple[str, JSON]]:
    """Return pods that the operator never builds, each with what is wrong."""

    def container(*path: str, value: Any) -> JSON:
        return changed(pod, ("spec", "containers", 0, *path), value)

    labels = ("metadata", "labels")
    sidecar = {**pod["spec"]["containers"][0], "name": "sidecar"}
    host = {"name": "host", "hostPath": {"path": "/"}}
    return [
        ("name", changed(pod, ("metadata", "name"), f"{NAME}-init-other-1")),
        ("try", changed(pod, ("metadata", "name"), f"{NAME}-init-fetch-x")),
        ("no step", changed(pod, (*labels, contract.LABEL_INIT_STEP), removed=True)),
        ("node", changed(pod, (*labels, contract.LABEL_NODE_INDEX), "0")),
        ("host name", changed(pod, ("spec", "hostname"), f"{NAME}-0000")),
        ("subdomain", changed(pod, ("spec", "subdomain"), NAME)),
        ("sidecar", changed(pod, ("spec", "containers", 1), sidecar)),
        ("init container", changed(pod, ("spec", "initContainers"), [sidecar])),
        ("host path", changed(pod, ("spec", "volumes", 0), host)),
        ("host network", changed(pod, ("spec", "hostNetwork"), True)),
        ("account", changed(pod, ("spec", "serviceAccountName"), "admin")),
        ("root", changed(pod, ("spec", "securityContext", "runAsUser"), 0)),
        ("privileged", container("securityContext", "privileged", value=True)),
        ("root file system", container("securityContext", "readOnlyRootFilesystem", value=False)),
        ("capability", container("securityContext", "capabilities", "add", value=["IPC_LOCK"])),
        ("probe", container("livenessProbe", value={"httpGet": {"path": "/", "port": 80}})),
        ("other name", container("name", value="other")),
    ]
