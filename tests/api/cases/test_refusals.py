"""Tests of pods that admission rejects: the job reports the reason, backs off and recovers."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.api.cases.conftest import OperatorLauncher
from tests.api.client import Api, RefusedError, eventually, path_of
from tests.api.job import Job
from tests.api.operator_process import OperatorProcess
from tests.api.proxy import FaultProxy

pytestmark = [pytest.mark.api, pytest.mark.usefixtures("operator")]


@pytest.fixture(scope="module")
def shared_operator(launcher: OperatorLauncher) -> Iterator[OperatorProcess]:
    """Yield an operator that accepts every podTemplate, even one that the API server rejects."""
    with launcher.operator("shared", settings={"pod_template": "full"}) as operator:
        yield operator


ADMISSION = "/apis/admissionregistration.k8s.io/v1"
CREATIONS_IN_TEN_SECONDS = 8
"""Maximum requests for one pod in 10 s: at 0, 0.2, 0.4, 0.8 ... s, with jitter of up to a half."""


async def check_backoff(proxy: FaultProxy, job: Job, since: float) -> None:
    """Check that the operator did not retry rejected pods without backoff."""
    seconds = time.monotonic() - since
    allowed = CREATIONS_IN_TEN_SECONDS * (1 + seconds / 10)
    for index in range(2):
        name = f"{job.name}-{index}"
        tried = proxy.count(
            since=since, verb="create", resource="pods", namespace=job.namespace, name=name
        )
        assert tried <= allowed, f"{tried} requests for {name} in {seconds:.0f} s"


async def test_operator_reports_exceeded_quota_and_creates_the_rest_later(
    proxy: FaultProxy, api: Api, job: Job
) -> None:
    started = time.monotonic()
    quota = {"metadata": {"name": "two-pods"}, "spec": {"hard": {"pods": "2"}}}
    await api.call("POST", path_of("resourcequotas", job.namespace), quota)
    await job.create(nodes=3)
    await job.wait_for_message("exceeded quota: two-pods")
    assert (await job.condition("PodsReady"))["reason"] == "QuotaExceeded"
    assert len(await job.pods()) == 2
    before = await job.uids()
    await check_backoff(proxy, job, started)
    path = path_of("resourcequotas", job.namespace, "two-pods")
    await api.call("PATCH", path, {"spec": {"hard": {"pods": "3"}}})
    await job.pods_of_attempt(1, nodes=3, seconds=60)
    assert (await job.uids()).items() >= before.items()
    await job.start_training()
    await job.wait_for("Running")
    assert (await job.status())["attempt"] == 1


async def test_operator_reports_pods_rejected_by_pod_security(
    proxy: FaultProxy, api: Api, job: Job
) -> None:
    started = time.monotonic()
    await job.create(podTemplate={"spec": {"hostNetwork": True}})
    await job.wait_for_message("violates PodSecurity")
    assert (await job.condition("PodsReady"))["reason"] == "AdmissionRejected"
    await check_backoff(proxy, job, started)
    labels = {"pod-security.kubernetes.io/enforce": "privileged"}
    await api.call("PATCH", f"/api/v1/namespaces/{job.namespace}", {"metadata": {"labels": labels}})
    await job.pods_of_attempt(1, seconds=70)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"hostNetwrok": True}, 'unknown field "spec.hostNetwrok"'),
        ({"dnsPolicy": "Default Gateway"}, "spec.dnsPolicy: Unsupported value"),
    ],
    ids=["misspelt field", "invalid value"],
)
async def test_operator_reports_a_mistake_in_the_pod_template(
    proxy: FaultProxy, api: Api, job: Job, spec: dict[str, Any], message: str
) -> None:
    started = time.monotonic()
    await job.create(podTemplate={"spec": spec})
    await job.wait_for_message(message)
    assert (await job.condition("PodsReady"))["reason"] == "InvalidPod"
    await check_backoff(proxy, job, started)
    await api.edit_job(job.namespace, job.name, {"podTemplate": None})
    await job.pods_of_attempt(2, seconds=70)


async def test_operator_reports_pods_rejected_by_a_limit_range(
    proxy: FaultProxy, api: Api, job: Job
) -> None:
    started = time.monotonic()
    limit = {"type": "Container", "max": {"memory": "64Mi"}}
    path = f"/api/v1/namespaces/{job.namespace}/limitranges"
    body = {"metadata": {"name": "small"}, "spec": {"limits": [limit]}}
    await api.call("POST", path, body)
    await job.create(resources={"limits": {"memory": "128Mi"}})
    await job.wait_for_message("maximum memory usage per Container is 64Mi")
    assert (await job.condition("PodsReady"))["reason"] == "AdmissionRejected"
    await check_backoff(proxy, job, started)
    await api.call("DELETE", f"{path}/small")
    await job.pods_of_attempt(1, seconds=70)


async def test_operator_reports_pods_rejected_by_an_admission_policy(
    proxy: FaultProxy, api: Api, job: Job
) -> None:
    started = time.monotonic()
    only_here = {"matchLabels": {"kubernetes.io/metadata.name": job.namespace}}
    pods = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["pods"],
    }
    policy = {
        "metadata": {"name": "no-pods"},
        "spec": {
            "matchConstraints": {"resourceRules": [pods], "namespaceSelector": only_here},
            "validations": [
                {"expression": "false", "message": "pods are forbidden by the test policy"}
            ],
        },
    }
    binding = {
        "metadata": {"name": "no-pods"},
        "spec": {"policyName": "no-pods", "validationActions": ["Deny"]},
    }
    await api.call("POST", f"{ADMISSION}/validatingadmissionpolicies", policy)
    await api.call("POST", f"{ADMISSION}/validatingadmissionpolicybindings", binding)
    try:
        await eventually(lambda: _refused(api, job.namespace), "the policy is active")
        await job.create()
        await job.wait_for_message("pods are forbidden by the test policy")
        assert (await job.condition("PodsReady"))["reason"] == "AdmissionRejected"
        await check_backoff(proxy, job, started)
    finally:
        await api.call("DELETE", f"{ADMISSION}/validatingadmissionpolicybindings/no-pods")
        await api.call("DELETE", f"{ADMISSION}/validatingadmissionpolicies/no-pods")
    await job.pods_of_attempt(1, seconds=70)


async def _refused(api: Api, namespace: str) -> bool:
    container = {
        "name": "probe",
        "image": "probe",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "runAsNonRoot": True,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    pod = {"metadata": {"name": "probe"}, "spec": {"containers": [container]}}
    try:
        await api.call("POST", path_of("pods", namespace), pod, {"dryRun": "All"})
    except RefusedError as refused:
        return "pods are forbidden by the test policy" in str(refused)
    return False


async def test_unavailable_webhook_blocks_only_its_own_namespace(
    proxy: FaultProxy, api: Api, job: Job, other_job: Job
) -> None:
    started = time.monotonic()
    webhook = {
        "name": "dead.example.com",
        "clientConfig": {"url": "https://127.0.0.1:9/"},
        "failurePolicy": "Fail",
        "timeoutSeconds": 10,
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": job.namespace}},
        "rules": [
            {
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "operations": ["CREATE"],
                "resources": ["pods"],
            }
        ],
    }
    configuration = {"metadata": {"name": "dead"}, "webhooks": [webhook]}
    await api.call("POST", f"{ADMISSION}/validatingwebhookconfigurations", configuration)
    try:
        await job.create()
        await job.wait_for_message("dead.example.com")
        assert (await job.condition("PodsReady"))["reason"] == "WebhookFailed"
        assert not await job.pods()
        await other_job.train()
        await check_backoff(proxy, job, started)
    finally:
        await api.call("DELETE", f"{ADMISSION}/validatingwebhookconfigurations/dead")
    await job.pods_of_attempt(1, seconds=70)


async def test_operator_reports_a_missing_claim_and_leaves_the_pods_alone(
    proxy: FaultProxy, job: Job
) -> None:
    await job.create(checkpoint={"claimName": "training-shared"})
    pods = await job.pods_of_attempt(1)
    reason = 'persistentvolumeclaim "training-shared" not found'
    waiting = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": reason,
    }
    for pod in pods:
        await job.kubelet.set_status(pod, {"phase": "Pending", "conditions": [waiting]})
    condition = await job.wait_for_message(reason)
    assert condition["reason"] == "Pending"
    seen = time.monotonic()
    before = await job.uids()
    # The claim is bound now. Scheduler and kubelets start the pods without the operator.
    await job.start_training()
    await job.wait_for("Running")
    assert await job.uids() == before
    changes = [
        proxy.count(since=seen, verb=v, resource="pods", namespace=job.namespace)
        for v in ("create", "delete", "patch")
    ]
    assert changes == [0, 0, 0]
