"""Measure how much CPU the chart's admission policy costs the API server per created pod."""

import asyncio
import json
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from bench.scale import bare_client
from bench.scale.stage import job
from ddp_operator.api.job import parse_job
from ddp_operator.builders.pod import build_pod
from ddp_wire import contract
from tests.api.client import Api, path_of
from tests.api.control_plane import OPERATOR, ControlPlane
from tests.harness import paths
from tests.harness.cluster import Cluster
from tests.harness.install import eventually
from tests.harness.pki import Authority, Pair
from tests.operator.support import DEFAULTS

_POLICY = "ddp-trainer-operator"
_LIMIT_SECONDS = 60.0
_POLL_SECONDS = 0.5
_SETTLE_SECONDS = 2.0
"""Seconds until the API server has sent the deletion of the pods to all watchers."""


@dataclass
class PolicyCost:
    """CPU seconds of the API server for creating pods, by user, with and without the policy."""

    pods: int
    seconds: dict[tuple[str, bool], list[float]] = field(default_factory=dict)


async def with_and_without_policy(pods: int, rounds: int) -> PolicyCost:
    """Create pods of a job as the operator and as an administrator, with and without the policy.

    Only the API server, etcd and the controller manager run.
    """
    found = PolicyCost(pods)
    plane = await asyncio.to_thread(ControlPlane.up)
    try:
        async with Api.connect(plane.cluster) as api:
            authority = Authority(paths.STATE / "pki")
            creators = {
                "the operator": authority.issue("bench-operator", OPERATOR, ()),
                "an administrator": authority.files("admin"),
            }
            await _measure(plane, api, creators, rounds, found)
    finally:
        await asyncio.to_thread(plane.cluster.down)
    return found


async def _measure(
    plane: ControlPlane, api: Api, creators: dict[str, Pair], rounds: int, found: PolicyCost
) -> None:
    cluster, namespace = plane.cluster, await api.create_namespace("policy")
    pod = build_pod(parse_job(await api.apply_job(namespace, job("policy", 1))), 0, 1, DEFAULTS)
    pod["metadata"]["name"] = f"policy-{bare_client.POD_NUMBER}"
    pod["metadata"]["labels"][contract.LABEL_NODE_INDEX] = bare_client.POD_NUMBER
    binding = ("validatingadmissionpolicybinding", _POLICY)
    manifest = cluster.kubectl("get", *binding, "-o", "json").stdout
    for _ in range(rounds):
        for enforced in (False, True):
            await asyncio.to_thread(_enforce, plane, enforced, manifest)
            for name, user in creators.items():
                before = await asyncio.to_thread(_cpu_seconds, cluster)
                await asyncio.to_thread(bare_client.run, cluster, user, namespace, pod, found.pods)
                seconds = await asyncio.to_thread(_cpu_seconds, cluster) - before
                found.seconds.setdefault((name, enforced), []).append(seconds)
                await _delete_pods(api, namespace)


def _enforce(plane: ControlPlane, enforced: bool, manifest: str) -> None:
    """Bind or unbind the policy, and wait until the API server applies the change."""
    kubectl = plane.cluster.kubectl
    if enforced:
        binding = json.loads(manifest)
        kept = {key: binding["metadata"][key] for key in ("name", "labels")}
        kubectl("apply", "-f", "-", input=json.dumps(binding | {"metadata": kept}))
    else:
        kubectl("delete", "validatingadmissionpolicybinding", _POLICY)
    eventually(lambda: plane.is_limited() is enforced, f"policy: {enforced}", _LIMIT_SECONDS)


async def _delete_pods(api: Api, namespace: str) -> None:
    await api.call("DELETE", path_of("pods", namespace), {"gracePeriodSeconds": 0})
    while await api.list("pods", namespace):  # noqa: ASYNC110 (only the API server knows)
        await asyncio.sleep(_POLL_SECONDS)
    await asyncio.sleep(_SETTLE_SECONDS)


def _cpu_seconds(cluster: Cluster) -> float:
    """Return the CPU seconds that the API server has used so far."""
    families = text_string_to_metric_families(cluster.kubectl("get", "--raw", "/metrics").stdout)
    samples = (one for family in families for one in family.samples)
    return next(one.value for one in samples if one.name == "process_cpu_seconds_total")
