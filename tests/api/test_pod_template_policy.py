"""The chart's ValidatingAdmissionPolicy refuses the same jobs as the operator, on a real server."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import yaml

from tests.api.client import Api, RefusedError, eventually
from tests.api.control_plane import ControlPlane
from tests.harness.install import EXAMPLE_IMAGES, ROOT, SYSTEM_NAMESPACE
from tests.operator.api.pod_policy_cases import ALLOWED, ELSEWHERE, REFUSED
from tests.operator.support import job_manifest

pytestmark = pytest.mark.api

POLICIES = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
JSON = dict[str, Any]


@contextmanager
def enforced(control_plane: ControlPlane, namespace: str, policy: str) -> Iterator[None]:
    """Install a podTemplate policy of the chart for one namespace until the end of the block."""
    cluster = control_plane.cluster
    flags = ("--set", f"podTemplate={policy}", "--set", f"operator.watchNamespaces={{{namespace}}}")
    chart = cluster.helm(
        "template", f"on-{policy}", str(ROOT / "charts"), "-n", SYSTEM_NAMESPACE,
        "-s", "templates/admission-pod-template.yaml", *EXAMPLE_IMAGES, *flags,
    ).stdout  # fmt: skip
    assert {d["kind"] for d in yaml.safe_load_all(chart)} == set(POLICIES)
    cluster.kubectl("apply", "-f", "-", input=chart)
    try:
        yield
    finally:
        cluster.kubectl("delete", "-f", "-", input=chart)


async def refusal(api: Api, namespace: str, spec: JSON) -> str:
    """Return the message with which the API server refuses a job; "" if it accepts it."""
    job = job_manifest("probe", **spec)
    job["metadata"] = {"name": "probe", "namespace": namespace}
    path = f"/apis/ddp-trainer.dev/v1alpha1/namespaces/{namespace}/ddpjobs"
    try:
        await api.call("POST", path, job, {"dryRun": "All", "fieldValidation": "Strict"})
    except RefusedError as refused:
        return str(refused)
    return ""


async def until_enforced(api: Api, namespace: str, spec: JSON) -> None:
    async def refuses() -> bool:
        return "denied request" in await refusal(api, namespace, spec)

    await eventually(refuses, "the API server enforces the policy")


async def test_api_server_refuses_what_the_operator_refuses_and_names_the_field(
    control_plane: ControlPlane, api: Api, namespace: str
) -> None:
    with enforced(control_plane, namespace, "scheduling"):
        await until_enforced(api, namespace, ELSEWHERE["system priority"][0])
        cases = [
            (spec, f"spec.podTemplate.spec.{field}: must ") for spec, field in REFUSED.values()
        ]
        cases += list(ELSEWHERE.values())
        found = await asyncio.gather(*(refusal(api, namespace, spec) for spec, _ in cases))
        wrong = [
            (begin, message)
            for (_, begin), message in zip(cases, found, strict=True)
            if f"denied request: {begin}" not in message
        ]
        assert wrong == []
        assert all("policy of this installation is scheduling" in message for message in found)
        allowed = [await refusal(api, namespace, spec) for spec in ALLOWED.values()]
        assert set(allowed) == {""}
        malformed = {"podTemplate": {"spec": {"containers": [{"name": "a", "securityContext": 1}]}}}
        assert "denied request" in await refusal(api, namespace, malformed)
        source = {"volumes": [{"name": "root", "hostPath": {"path": "/"}}]}
        assert 'unknown field "spec.volumes[0].hostPath"' in await refusal(api, namespace, source)


async def test_job_older_than_the_policy_can_be_suspended_but_gets_no_new_privilege(
    control_plane: ControlPlane, api: Api, namespace: str
) -> None:
    old = {**job_manifest(podTemplate={"metadata": {"labels": {"a": "b"}}})}
    await api.apply_job(namespace, {**old, "metadata": {"name": "digits"}})
    with enforced(control_plane, namespace, "off"):
        await until_enforced(api, namespace, ALLOWED["metadata"])
        assert await refusal(api, namespace, ALLOWED["priority"]) == ""
        edited = await api.edit_job(namespace, "digits", {"suspend": True})
        assert edited["spec"]["suspend"] is True
        with pytest.raises(RefusedError, match=r"spec\.podTemplate: must not be set, because"):
            await api.edit_job(namespace, "digits", {"podTemplate": {"spec": {"hostPID": True}}})
