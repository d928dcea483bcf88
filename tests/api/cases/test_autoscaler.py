"""Kubernetes' own autoscaler changes the size of an elastic job, and the operator follows.

The API server and kube-controller-manager are real. The source of the metric is a stand-in
(`external_metrics`), because no metrics adapter is installed.
"""

import re
from functools import partial
from typing import Any

import pytest
import yaml

from tests.api.cases.conftest import OperatorLauncher
from tests.api.client import Api, eventually
from tests.api.control_plane import ControlPlane
from tests.api.external_metrics import is_available, serving
from tests.api.job import Job
from tests.harness.install import ROOT

pytestmark = pytest.mark.api

JSON = dict[str, Any]
PAGE = ROOT / "docs" / "use" / "elastic.md"
CONTROLLER = "system:serviceaccount:kube-system:horizontal-pod-autoscaler"


def autoscaler_of_the_page() -> JSON:
    """Return the manifest on the page about elastic jobs."""
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    manifests: list[JSON] = [yaml.safe_load(block) for block in blocks]
    [found] = [one for one in manifests if one.get("kind") == "HorizontalPodAutoscaler"]
    return found


def autoscaler_for(job: Job) -> JSON:
    """Return the manifest of the page for a job of two to four nodes, without its long waits."""
    manifest = autoscaler_of_the_page()
    spec = manifest["spec"]
    assert spec["scaleTargetRef"]["kind"] == "DDPJob"
    spec["scaleTargetRef"]["name"] = job.name
    spec |= {"minReplicas": 2, "maxReplicas": 4}
    for direction in spec["behavior"].values():
        direction["stabilizationWindowSeconds"] = 0
    return manifest


async def test_autoscaler_with_an_external_metric_raises_and_lowers_the_nodes(
    launcher: OperatorLauncher, control_plane: ControlPlane, api: Api, job: Job
) -> None:
    manifest = autoscaler_for(job)
    metric = manifest["spec"]["metrics"][0]["external"]["metric"]["name"]
    path = f"/apis/autoscaling/v2/namespaces/{job.namespace}/horizontalpodautoscalers"
    with launcher.operator("autoscaled") as operator:
        await operator.wait_until_ready()
        await job.create(nodes=2, elastic={"minNodes": 2})

        async def has_pods() -> bool:
            return len(await job.pods()) == 2

        await eventually(has_pods, "both pods exist")
        await job.start_training(warm=True)
        await job.wait_for("Running")

        async def size() -> tuple[int, int, str]:
            found = await job.read()
            return found["spec"]["nodes"], found["status"]["replicas"], found["status"]["ready"]

        async def is_at(nodes: int) -> bool:
            """Return whether the autoscaler has set `nodes` and the operator has obeyed."""
            await job.kubelet.finish_deletions()
            return await size() == (nodes, nodes, f"2/{nodes}")

        async with serving(api, metric, 2) as server:
            await eventually(lambda: is_available(api), "the API server reaches the metric")
            created = await api.call("POST", path, manifest)
            for nodes in (4, 3, 2):
                server.value = nodes
                wanted = f"the job has {nodes} nodes"
                await eventually(partial(is_at, nodes), wanted, 60)
            assert server.readers == {CONTROLLER}
            server.value = 9
            await eventually(lambda: is_at(4), "maxReplicas limits the nodes", 60)
            found = await api.call("GET", f"{path}/{created['metadata']['name']}")
        conditions = {c["type"]: c["status"] for c in found["status"]["conditions"]}
        assert conditions["AbleToScale"] == conditions["ScalingActive"] == "True"
        assert (await job.status())["attempt"] == 1, "waiting pods end no attempt"
        assert await job.reason() == "Running"
    assert _writes_of_the_spec(control_plane, job, CONTROLLER)
    assert not _writes_of_the_spec(control_plane, job), "the operator never writes nodes"


def _writes_of_the_spec(control_plane: ControlPlane, job: Job, *users: str) -> list[JSON]:
    """Return the requests of a user, by default the operator, that could change the job's spec."""
    entries = control_plane.audit(job.namespace, *users)
    return [
        entry
        for entry in entries
        if entry["verb"] in {"create", "update", "patch"}
        and entry["objectRef"]["resource"] == "ddpjobs"
        and entry["objectRef"].get("subresource") != "status"
    ]
