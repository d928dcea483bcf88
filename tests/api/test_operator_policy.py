"""The chart's ValidatingAdmissionPolicy limits what the operator's ServiceAccount can write."""

import asyncio
import copy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import yaml

from ddp_operator.api.job import parse_job
from ddp_operator.builders.pod import build_pod
from ddp_operator.builders.service import build_service
from tests.api.client import Api, RefusedError, eventually, path_of
from tests.api.control_plane import OPERATOR, ControlPlane
from tests.harness.cluster import Cluster
from tests.operator.support import DEFAULTS, job_manifest
from tests.tools.install import ROOT, SYSTEM_NAMESPACE

pytestmark = pytest.mark.api

JSON = dict[str, Any]
DRY_RUN = {"dryRun": "All"}
ONLY_CHILDREN = "may write only objects that a DDPJob owns"
NO_ACCESS = "may create only pods without access to the host"
SERVED = "may write only in the namespaces that it serves"
OTHER_OBJECTS = "may write only pods, Services, NetworkPolicies, Events and statuses of jobs"
CORE = "/api/v1/namespaces"


@pytest.fixture
async def children(api: Api, namespace: str) -> dict[str, JSON]:
    """Create a job and return the pod and the Service that the operator would create for it."""
    made = await api.apply_job(namespace, {**job_manifest(), "metadata": {"name": "digits"}})
    job = parse_job(made)
    return {"pods": build_pod(job, 0, 1, DEFAULTS), "services": build_service(job)}


def changed(manifest: JSON, path: str, value: Any) -> JSON:
    """Return a manifest with one value set, or removed for None. `~` stands for a `/` in a key."""
    out = copy.deepcopy(manifest)
    keys = [int(k) if k.isdigit() else k.replace("~", "/") for k in path.split("/")]
    place: Any = out
    for key in keys[:-1]:
        place = place[key]
    if value is None:
        del place[keys[-1]]
    else:
        place[keys[-1]] = value
    return out


async def refusal(api: Api, method: str, path: str, body: JSON | None = None) -> str:
    """Return the message with which the API server refuses a request; "" if it accepts it."""
    try:
        await api.call(method, path, body, DRY_RUN)
    except RefusedError as refused:
        return str(refused)
    return ""


@asynccontextmanager
async def powerful(control_plane: ControlPlane, user: str) -> AsyncIterator[Api]:
    """Yield a client of a user that only admission policies limit, by impersonation."""
    cluster, name = control_plane.cluster, "every-right"
    cluster.kubectl(
        "create", "clusterrolebinding", name, "--clusterrole=cluster-admin", f"--user={user}"
    )
    async with Api.connect(cluster, user) as connected:

        async def may_all() -> bool:
            return await refusal(connected, "GET", "/api/v1/secrets") == ""

        await eventually(may_all, f"{user} has all rights")
        yield connected
    cluster.kubectl("delete", "clusterrolebinding", name)


def operator_policy(cluster: Cluster, release: str, *values: str) -> str:
    """Return the YAML of the policy that another release has for its own operator."""
    place = ("-n", SYSTEM_NAMESPACE, "-s", "templates/admission-operator.yaml")
    sets = [word for value in values for word in ("--set", value)]
    return cluster.helm("template", release, str(ROOT / "charts"), *place, *sets).stdout


def account(release: str) -> str:
    """Return the user name of a release's operator."""
    return f"system:serviceaccount:{SYSTEM_NAMESPACE}:{release}"


@pytest.fixture
async def operator(control_plane: ControlPlane) -> AsyncIterator[Api]:
    """Yield a client of the operator's user with the rights of an administrator."""
    await asyncio.to_thread(control_plane.wait_until_limited)
    async with powerful(control_plane, OPERATOR) as connected:
        yield connected


async def test_operator_creates_the_children_of_a_job_and_nothing_else(
    operator: Api, namespace: str, children: dict[str, JSON]
) -> None:
    for kind, child in children.items():
        assert await refusal(operator, "POST", path_of(kind, namespace), child) == ""
        for path, value in (
            ("metadata/labels/ddp-trainer.dev~job-uid", "other"),
            ("metadata/labels/ddp-trainer.dev~job-name", None),
            ("metadata/labels/app.kubernetes.io~managed-by", "other"),
            ("metadata/ownerReferences", None),
            ("metadata/ownerReferences/0/kind", "Job"),
            ("metadata/ownerReferences/0/uid", "other"),
        ):
            wrong = changed(child, path, value)
            assert ONLY_CHILDREN in await refusal(operator, "POST", path_of(kind, namespace), wrong)
    secret = {"metadata": {"name": "s"}}
    assert OTHER_OBJECTS in await refusal(operator, "POST", f"{CORE}/{namespace}/secrets", secret)
    for target in ("kube-system", "kube-public"):
        pod = changed(children["pods"], "metadata/namespace", target)
        assert SERVED in await refusal(operator, "POST", path_of("pods", target), pod)
    token: JSON = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    tokens = path_of("serviceaccounts", namespace, "default", "token")
    assert OTHER_OBJECTS in await refusal(operator, "POST", tokens, token)


async def test_operator_changes_and_deletes_no_object_of_others(
    operator: Api, api: Api, namespace: str, children: dict[str, JSON]
) -> None:
    foreign = changed(children["pods"], "metadata/ownerReferences", None)
    await api.call("POST", path_of("pods", namespace), foreign)
    path = path_of("pods", namespace, "digits-0")
    image = {"spec": {"activeDeadlineSeconds": 1}}
    assert ONLY_CHILDREN in await refusal(operator, "PATCH", path, image)
    assert ONLY_CHILDREN in await refusal(operator, "DELETE", path)
    job = path_of("ddpjobs", namespace, "digits")
    assert OTHER_OBJECTS in await refusal(operator, "PATCH", job, {"spec": {"nodes": 3}})
    assert await refusal(operator, "DELETE", job) == ""
    lease = {"metadata": {"name": "other"}}
    leases = path_of("leases", SYSTEM_NAMESPACE)
    assert OTHER_OBJECTS in await refusal(operator, "POST", leases, lease)
    mine = path_of("leases", SYSTEM_NAMESPACE, "ddp-trainer-operator")
    if await api.find(mine) is None:  # The operator of another test may have left it.
        name: JSON = {"metadata": {"name": "ddp-trainer-operator"}}
        assert await refusal(operator, "POST", leases, name) == ""
        await api.call("POST", leases, name)
    label = {"metadata": {"labels": {"seen": "true"}}}
    assert await refusal(operator, "PATCH", mine, label) == ""


async def test_a_write_that_keeps_the_rules_reaches_no_validation(
    control_plane: ControlPlane, namespace: str, children: dict[str, JSON]
) -> None:
    """Validations cost the API server three conversions of the object, the condition costs one."""
    cluster = control_plane.cluster
    policy, *others = yaml.safe_load_all(operator_policy(cluster, "skipped"))
    policy["spec"]["validations"] = [{"expression": "false", "message": "a validation is reached"}]
    documents = yaml.safe_dump_all([policy, *others])
    cluster.kubectl("apply", "-f", "-", input=documents)
    pods, pod = path_of("pods", namespace), children["pods"]
    wrong = changed(pod, "metadata/ownerReferences", None)
    async with powerful(control_plane, account("skipped")) as skipped:

        async def enforced() -> bool:
            return "a validation is reached" in await refusal(skipped, "POST", pods, wrong)

        await eventually(enforced, "the API server enforces the policy")
        assert await refusal(skipped, "POST", pods, pod) == ""
    cluster.kubectl("delete", "-f", "-", input=documents)


async def test_operator_creates_no_pod_with_power_over_the_host(
    control_plane: ControlPlane, api: Api, namespace: str, children: dict[str, JSON]
) -> None:
    """The shared control plane has podTemplate full, so this policy is of another release."""
    labels = {"pod-security.kubernetes.io/enforce": "privileged"}
    await api.call("PATCH", f"{CORE}/{namespace}", {"metadata": {"labels": labels}})
    admin = {"metadata": {"name": "admin"}}
    await api.call("POST", path_of("serviceaccounts", namespace), admin)
    cluster = control_plane.cluster
    chart = operator_policy(cluster, "strict", f"operator.watchNamespaces={{{namespace}}}")
    cluster.kubectl("apply", "-f", "-", input=chart)
    async with powerful(control_plane, account("strict")) as strict:
        await _check_strict(strict, namespace, children["pods"])
    cluster.kubectl("delete", "-f", "-", input=chart)


async def _check_strict(strict: Api, namespace: str, pod: JSON) -> None:
    pods = path_of("pods", namespace)

    async def enforced() -> bool:
        return NO_ACCESS in await refusal(strict, "POST", pods, changed(pod, "spec/hostPID", True))

    await eventually(enforced, "the API server enforces the policy")
    assert await refusal(strict, "POST", pods, pod) == ""
    for path, value in (
        ("spec/hostNetwork", True),
        ("spec/hostIPC", True),
        ("spec/volumes/0", {"name": "ddp-pod-info", "hostPath": {"path": "/"}}),
        ("spec/nodeName", "node-1"),
        ("spec/serviceAccountName", "admin"),
        ("spec/automountServiceAccountToken", True),
        ("spec/priorityClassName", "system-node-critical"),
        ("spec/containers/0/securityContext", {"privileged": True}),
    ):
        wrong = changed(pod, path, value)
        assert NO_ACCESS in await refusal(strict, "POST", pods, wrong), path
    elsewhere = changed(pod, "metadata/namespace", "default")
    assert SERVED in await refusal(strict, "POST", path_of("pods", "default"), elsewhere)
