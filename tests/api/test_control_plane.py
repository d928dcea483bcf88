"""A test of the fixtures: a real API server, the operator's permissions and fake kubelets."""

import pytest

from ddp_operator.builders.defaults import Defaults
from ddp_operator.runtime.cache import Cache
from ddp_operator.runtime.controller import Controller
from ddp_wire.messages import AgentPhase, AgentStatus
from tests.api.client import Api, operator_client, path_of
from tests.api.control_plane import OPERATOR, ControlPlane
from tests.api.kubelet import FakeAgents, FakeKubelet, FakeStatuses
from tests.operator.support import NOW, job_manifest

pytestmark = pytest.mark.api


async def test_job_runs_from_creation_to_completion(
    control_plane: ControlPlane, api: Api, agents: FakeAgents, namespace: str
) -> None:
    manifest = {**job_manifest(nodes=2), "metadata": {"name": "digits"}}
    job = await api.apply_job(namespace, manifest)
    kubelet, key = FakeKubelet(api, agents, namespace), (namespace, "digits")
    async with operator_client(control_plane.operator_kubeconfig) as cluster:
        cache = Cache()
        controller = Controller(
            cluster,
            cache,
            Defaults(image="example/trainer:1"),
            lambda: NOW,
            agents=FakeStatuses(agents),
        )

        async def look() -> str:
            for _ in range(5):
                cache.replace(await cluster.snapshot(namespace))
                await controller.reconcile(key)
            now = await api.call("GET", path_of("ddpjobs", namespace, "digits"))
            reasons = {c["type"]: c["reason"] for c in now["status"]["conditions"]}
            return str(reasons["Succeeded"])

        assert await look() == "Pending"
        pods = await kubelet.pods()
        statuses = [
            AgentStatus(node_index=n, attempt=1, phase=AgentPhase.TRAINING, since=0.0)
            for n in range(len(pods))
        ]
        for pod, status in zip(pods, statuses, strict=True):
            await kubelet.report_status(pod, status, ready=True)
        assert await look() == "Running"
        for pod, status in zip(pods, statuses, strict=True):
            final = status.model_copy(update={"phase": AgentPhase.SUCCEEDED})
            await kubelet.end_container(pod, 0, final)
        assert await look() == "Completed"
    requests = control_plane.audit(namespace)
    assert {e["user"]["username"] for e in requests} == {OPERATOR}
    created = [e["objectRef"]["name"] for e in requests if e["verb"] == "create"]
    assert {"digits", "digits-0", "digits-1"} <= set(created)
    assert all(e["responseStatus"]["code"] < 400 for e in requests)
    assert job["metadata"]["uid"]
