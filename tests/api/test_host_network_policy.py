"""The chart's admission policies allow the network of the nodes only with reserved ports."""

from typing import Any

import pytest

from ddp_operator.api.job import parse_job
from ddp_operator.builders.defaults import Defaults
from ddp_operator.builders.pod import build_pod, with_secrets
from ddp_operator.reconcile.children import fresh_pods
from ddp_operator.reconcile.host_ports import why_no_host_network
from tests.api.client import Api, eventually, path_of
from tests.api.control_plane import ControlPlane
from tests.api.mutations import changed
from tests.api.test_operator_policy import (
    CREATES_NO,
    children_of,
    refusal,
    strict_release,
)
from tests.operator.support import job_manifest, new_job, with_status

pytestmark = pytest.mark.api

JSON = dict[str, Any]
HOST_PORTS = "workers.hostPorts=20000-20131"


@pytest.mark.parametrize("policy", ["scheduling", "off"])
async def test_pods_use_the_host_network_with_the_reserved_ports_only(
    control_plane: ControlPlane, namespace: str, policy: str
) -> None:
    values = HOST_PORTS, f"podTemplate={policy}"
    async with strict_release(control_plane, namespace, *values) as (strict, defaults):
        assert defaults.host_ports is not None
        pods, pod = path_of("pods", namespace), _pod_on_the_host(namespace, defaults)
        assert await refusal(strict, "POST", pods, pod) == ""
        port = ("spec", "containers", 0, "ports", 0)
        other_port, no_own_network = "ports of the Kubernetes node", "this value of spec."
        for path, value, part in (
            ((*port, "containerPort"), 8470, other_port),
            ((*port, "containerPort"), 20132, other_port),
            (("spec", "hostNetwork"), False, no_own_network),
            (("spec", "dnsPolicy"), "ClusterFirst", no_own_network),
            (("spec", "dnsPolicy"), "Default", no_own_network),
        ):
            answer = await refusal(strict, "POST", pods, changed(pod, path, value))
            assert f"{CREATES_NO} {part}" in answer, (path, value)
        own = children_of(_in_namespace(job_manifest(), namespace), defaults)["pods"]
        assert await refusal(strict, "POST", pods, own) == ""
        wrong = changed(own, (*port, "hostPort"), 8470)
        assert CREATES_NO in await refusal(strict, "POST", pods, wrong)


async def test_pods_stay_off_the_host_network_without_reserved_ports(
    control_plane: ControlPlane, namespace: str
) -> None:
    async with strict_release(control_plane, namespace) as (strict, defaults):
        assert defaults.host_ports is None
        pods, pod = path_of("pods", namespace), _pod_on_the_host(namespace, defaults)
        answer = await refusal(strict, "POST", pods, pod)
        assert f"{CREATES_NO} this value of spec.hostNetwork" in answer


def _pod_on_the_host(namespace: str, defaults: Defaults) -> JSON:
    """Return a pod that uses the network of its Kubernetes node and the ports from 20066 on."""
    made = _in_namespace(job_manifest(network={"hostNetwork": True}), namespace)
    job = parse_job(made)
    job = with_status(job, pods=fresh_pods(job, defaults, 20_066))
    return with_secrets(build_pod(job, 0, 1, defaults), "secret", "of the job")


def _in_namespace(job: JSON, namespace: str) -> JSON:
    return {**job, "metadata": {**job["metadata"], "namespace": namespace}}


async def test_jobs_may_not_ask_for_the_host_network_without_reserved_ports(
    api: Api, namespace: str
) -> None:
    """The chart of the shared control plane reserves none."""
    jobs = path_of("ddpjobs", namespace)
    wanted: dict[str, Any] = {"network": {"hostNetwork": True}}
    asks, usual = (
        {**job_manifest(**spec), "metadata": {"name": "a"}} for spec in (wanted, {"nodes": 1})
    )
    sentence = why_no_host_network(new_job(**wanted).spec, None)
    assert sentence is not None

    async def enforced() -> bool:
        return sentence in await refusal(api, "POST", jobs, asks)

    await eventually(enforced, "the API server refuses the job with the operator's sentence", 60)
    assert await refusal(api, "POST", jobs, usual) == ""
    await api.call("POST", jobs, usual)
    edit = {"spec": wanted}
    assert sentence in await refusal(api, "PATCH", path_of("ddpjobs", namespace, "a"), edit)
