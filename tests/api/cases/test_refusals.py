"""Pods that admission refuses: the job says why, waits without haste, and heals."""

import time

import pytest

from tests.api.client import Api, RefusedError, eventually, path_of
from tests.api.job import Job
from tests.api.proxy import Proxy

pytestmark = [pytest.mark.api, pytest.mark.usefixtures("operator")]

ADMISSION = "/apis/admissionregistration.k8s.io/v1"
CREATIONS_IN_TEN_SECONDS = 8
"""Tries for one pod at 0, 0.2, 0.4, 0.8 ... s, less up to a half each."""


async def assert_patient(proxy: Proxy, job: Job, since: float) -> None:
    """What was refused has not been tried in a tight loop."""
    seconds = time.monotonic() - since
    allowed = CREATIONS_IN_TEN_SECONDS * (1 + seconds / 10)
    for index in range(2):
        name = f"{job.name}-{index}"
        tried = proxy.count(
            since=since, verb="create", resource="pods", namespace=job.namespace, name=name
        )
        assert tried <= allowed, f"{name} was tried {tried} times in {seconds:.0f} s"


async def test_case_30_a_quota_that_is_exceeded_is_named_and_the_rest_follows_when_there_is_room(
    proxy: Proxy, api: Api, job: Job
) -> None:
    begun = time.monotonic()
    quota = {"metadata": {"name": "two-pods"}, "spec": {"hard": {"pods": "2"}}}
    await api.call("POST", path_of("resourcequotas", job.namespace), quota)
    await job.create(nodes=3)
    await job.wait_for_message("exceeded quota: two-pods")
    assert (await job.condition("PodsReady"))["reason"] == "QuotaExceeded"
    assert len(await job.pods()) == 2
    before = await job.uids()
    await assert_patient(proxy, job, begun)
    path = path_of("resourcequotas", job.namespace, "two-pods")
    await api.call("PATCH", path, {"spec": {"hard": {"pods": "3"}}})
    await job.pods_of_attempt(1, nodes=3, seconds=60)
    assert (await job.uids()).items() >= before.items()
    await job.join()
    await job.wait_for("Running")
    assert (await job.status())["attempt"] == 1


async def test_case_31_pod_security_refuses_pods(proxy: Proxy, api: Api, job: Job) -> None:
    begun = time.monotonic()
    await job.create(podTemplate={"spec": {"hostNetwork": True}})
    await job.wait_for_message("violates PodSecurity")
    assert (await job.condition("PodsReady"))["reason"] == "AdmissionRejected"
    await assert_patient(proxy, job, begun)
    labels = {"pod-security.kubernetes.io/enforce": "privileged"}
    await api.call("PATCH", f"/api/v1/namespaces/{job.namespace}", {"metadata": {"labels": labels}})
    await job.pods_of_attempt(1, seconds=70)


async def test_case_31_a_limit_range_refuses_pods(proxy: Proxy, api: Api, job: Job) -> None:
    begun = time.monotonic()
    limit = {"type": "Container", "max": {"memory": "64Mi"}}
    path = f"/api/v1/namespaces/{job.namespace}/limitranges"
    body = {"metadata": {"name": "small"}, "spec": {"limits": [limit]}}
    await api.call("POST", path, body)
    await job.create(resources={"limits": {"memory": "128Mi"}})
    await job.wait_for_message("maximum memory usage per Container is 64Mi")
    assert (await job.condition("PodsReady"))["reason"] == "AdmissionRejected"
    await assert_patient(proxy, job, begun)
    await api.call("DELETE", f"{path}/small")
    await job.pods_of_attempt(1, seconds=70)


async def test_case_31_an_admission_policy_refuses_pods(proxy: Proxy, api: Api, job: Job) -> None:
    begun = time.monotonic()
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
            "validations": [{"expression": "false", "message": "no pods on Sundays"}],
        },
    }
    binding = {
        "metadata": {"name": "no-pods"},
        "spec": {"policyName": "no-pods", "validationActions": ["Deny"]},
    }
    await api.call("POST", f"{ADMISSION}/validatingadmissionpolicies", policy)
    await api.call("POST", f"{ADMISSION}/validatingadmissionpolicybindings", binding)
    try:
        await eventually(lambda: _refused(api, job.namespace), "the policy is in force")
        await job.create()
        await job.wait_for_message("no pods on Sundays")
        assert (await job.condition("PodsReady"))["reason"] == "AdmissionRejected"
        await assert_patient(proxy, job, begun)
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
        return "no pods on Sundays" in str(refused)
    return False


async def test_case_32_a_webhook_that_is_down_holds_up_its_own_namespace_alone(
    proxy: Proxy, api: Api, job: Job, other_job: Job
) -> None:
    begun = time.monotonic()
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
        await assert_patient(proxy, job, begun)
    finally:
        await api.call("DELETE", f"{ADMISSION}/validatingwebhookconfigurations/dead")
    await job.pods_of_attempt(1, seconds=70)


async def test_case_34_a_claim_that_is_missing_is_named_and_nothing_is_done_in_haste(
    proxy: Proxy, job: Job
) -> None:
    await job.create(checkpoint={"claimName": "training-shared"})
    pods = await job.pods_of_attempt(1)
    said = 'persistentvolumeclaim "training-shared" not found'
    waiting = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": said,
    }
    for pod in pods:
        await job.kubelet.set_status(pod, {"phase": "Pending", "conditions": [waiting]})
    condition = await job.wait_for_message(said)
    assert condition["reason"] == "Pending"
    seen = time.monotonic()
    before = await job.uids()
    # It is created and bound: the scheduler and the kubelets go on, and the operator did nothing.
    await job.join()
    await job.wait_for("Running")
    assert await job.uids() == before
    changes = [
        proxy.count(since=seen, verb=v, resource="pods", namespace=job.namespace)
        for v in ("create", "delete", "patch")
    ]
    assert changes == [0, 0, 0]
