"""The chart's ValidatingAdmissionPolicy limits what the operator's ServiceAccount can write."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import yaml

from ddp_operator.api.job import parse_job
from ddp_operator.api.pod_policy import ANNOTATIONS, allows_annotation
from ddp_operator.builders.defaults import Defaults
from ddp_operator.builders.network import build_network_policy
from ddp_operator.builders.pod import build_pod, with_secrets
from ddp_operator.builders.service import build_service
from ddp_operator.runtime.settings import Settings
from tests.api.client import Api, RefusedError, eventually, path_of
from tests.api.control_plane import OPERATOR, ControlPlane
from tests.api.mutations import changed, named_mutations, producible, random_mutations
from tests.harness.cluster import Cluster
from tests.harness.install import EXAMPLE_IMAGES, ROOT, SYSTEM_NAMESPACE
from tests.operator.api.pod_policy_cases import ALLOWED
from tests.operator.support import DEFAULTS, job_manifest

pytestmark = pytest.mark.api

JSON = dict[str, Any]
STRICT = {"dryRun": "All", "fieldValidation": "Strict"}
ONLY_CHILDREN = "may write only objects that a DDPJob owns"
CREATES_NO = "may not create pods with"
CHANGES_ONLY = "may change "
SERVED = "may write only in the namespaces that it serves"
OTHER_OBJECTS = "may write only pods, Services, NetworkPolicies, groups of gangs.types, Events"
CORE = "/api/v1/namespaces"


@pytest.fixture
async def children(api: Api, namespace: str) -> dict[str, JSON]:
    """Create a job and return the pod and the Service that the operator would create for it."""
    made = await api.apply_job(namespace, {**job_manifest(), "metadata": {"name": "digits"}})
    return children_of(made, DEFAULTS)


def children_of(made: JSON, defaults: Defaults) -> dict[str, JSON]:
    """Return what the operator creates for a job, by resource."""
    job = parse_job(made)
    return {
        "pods": with_secrets(build_pod(job, 0, 1, defaults), "secret", "of the job"),
        "services": build_service(job),
        "networkpolicies": build_network_policy(job, defaults.agent_clients or ()),
    }


async def refusal(api: Api, method: str, path: str, body: JSON | None = None) -> str:
    """Return the message with which the API server refuses a request; "" if it accepts it."""
    try:
        await api.call(method, path, body, STRICT)
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
    try:
        async with Api.connect(cluster, user) as connected:

            async def may_all() -> bool:
                return await refusal(connected, "GET", "/api/v1/secrets") == ""

            await eventually(may_all, f"{user} has all rights")
            yield connected
    finally:
        cluster.kubectl("delete", "clusterrolebinding", name)


def template(cluster: Cluster, release: str, name: str, *values: str) -> str:
    """Return one rendered template of another release."""
    place = ("-n", SYSTEM_NAMESPACE, "-s", f"templates/{name}.yaml", *EXAMPLE_IMAGES)
    sets = [word for value in values for word in ("--set", value)]
    return cluster.helm(
        "template", release, str(ROOT / "charts"), *EXAMPLE_IMAGES, *place, *sets
    ).stdout


def operator_policy(cluster: Cluster, release: str, *values: str) -> str:
    """Return the YAML of the policy that another release has for its own operator."""
    return template(cluster, release, "admission-operator", *values)


def defaults_of(cluster: Cluster, release: str, *values: str) -> Defaults:
    """Return the settings with which the operator of another release builds pods."""
    [deployment] = yaml.safe_load_all(template(cluster, release, "deployment", *values))
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    settings = Settings.from_environment({v["name"]: v.get("value", "x") for v in container["env"]})
    return Defaults(
        image=settings.trainer_image,
        user=None if settings.worker_user == "assigned" else int(settings.worker_user),
        agent_clients=settings.agent_clients,
        annotations=settings.pod_template_annotations,
        host_ports=settings.port_range,
    )


def account(release: str) -> str:
    """Return the user name of a release's operator."""
    return f"system:serviceaccount:{SYSTEM_NAMESPACE}:{release}"


@pytest.fixture
async def operator(control_plane: ControlPlane) -> AsyncIterator[Api]:
    """Yield a client of the operator's user with the rights of an administrator."""
    await asyncio.to_thread(control_plane.wait_until_limited)
    async with powerful(control_plane, OPERATOR) as connected:
        yield connected


async def test_policy_allows_the_operator_to_create_only_children_of_jobs(
    operator: Api, namespace: str, children: dict[str, JSON]
) -> None:
    del children["networkpolicies"]  # The shared release names other peers.
    for kind, child in children.items():
        assert await refusal(operator, "POST", path_of(kind, namespace), child) == ""
        for path, value in (
            (("metadata", "labels", "ddp-trainer.dev/job-uid"), "other"),
            (("metadata", "labels", "ddp-trainer.dev/job-name"), None),
            (("metadata", "labels", "app.kubernetes.io/managed-by"), "other"),
            (("metadata", "ownerReferences"), None),
            (("metadata", "ownerReferences", 0, "kind"), "Job"),
            (("metadata", "ownerReferences", 0, "uid"), "other"),
        ):
            wrong = changed(child, path, value, removed=value is None)
            assert ONLY_CHILDREN in await refusal(operator, "POST", path_of(kind, namespace), wrong)
    secret = {"metadata": {"name": "s"}}
    assert OTHER_OBJECTS in await refusal(operator, "POST", f"{CORE}/{namespace}/secrets", secret)
    for target in ("kube-system", "kube-public"):
        pod = changed(children["pods"], ("metadata", "namespace"), target)
        assert SERVED in await refusal(operator, "POST", path_of("pods", target), pod)
    token: JSON = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    tokens = path_of("serviceaccounts", namespace, "default", "token")
    assert OTHER_OBJECTS in await refusal(operator, "POST", tokens, token)


async def test_policy_forbids_the_operator_to_change_objects_of_others(
    operator: Api, api: Api, namespace: str, children: dict[str, JSON]
) -> None:
    foreign = changed(children["pods"], ("metadata", "ownerReferences"), [])
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


async def test_allowed_write_of_the_operator_skips_the_validations_of_the_policy(
    control_plane: ControlPlane, namespace: str, children: dict[str, JSON]
) -> None:
    """Validations cost the API server three conversions of the object, the condition costs one."""
    cluster = control_plane.cluster
    policy, *others = yaml.safe_load_all(operator_policy(cluster, "skipped"))
    policy["spec"]["validations"] = [{"expression": "false", "message": "a validation is reached"}]
    documents = yaml.safe_dump_all([policy, *others])
    cluster.kubectl("apply", "-f", "-", input=documents)
    pods, pod = path_of("pods", namespace), children["pods"]
    wrong = changed(pod, ("metadata", "ownerReferences"), [])
    async with powerful(control_plane, account("skipped")) as skipped:

        async def enforced() -> bool:
            return "a validation is reached" in await refusal(skipped, "POST", pods, wrong)

        await eventually(enforced, "the API server enforces the policy")
        assert await refusal(skipped, "POST", pods, pod) == ""
    cluster.kubectl("delete", "-f", "-", input=documents)


SPECS: dict[str, JSON] = {
    **ALLOWED,
    "every field that shapes a pod": {
        "nodes": 2,
        "checkpoint": {"claimName": "claim"},
        "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        "imagePullSecrets": ["registry"],
        "network": {"rdma": {"resource": "rdma/hca"}, "interface": "eth0", "ncclDebug": "Info"},
        "nodeSelector": {"pool": "gpu"},
        "gpusPerNode": 8,
        "resources": {"requests": {"cpu": 1}, "limits": {"memory": "1Gi"}},
        "sharedMemory": "16Gi",
        "tolerations": [{"operator": "Exists"}],
        "volumes": [
            {"name": "a", "configMap": {"name": "code"}},
            {"name": "b", "secret": {"secretName": "token"}},
            {"name": "c", "emptyDir": {"medium": "Memory"}},
            {"name": "d", "persistentVolumeClaim": {"claimName": "data", "readOnly": True}},
        ],
        "volumeMounts": [{"name": "a", "mountPath": "/code", "readOnly": True}],
    },
}
"""Specs whose pods the operator must be able to create."""
RANDOM_MUTATIONS, SEED = 300, 11


@asynccontextmanager
async def strict_release(
    control_plane: ControlPlane, namespace: str, *values: str
) -> AsyncIterator[tuple[Api, Defaults]]:
    """Yield a client of another release's operator, which only the policy of its chart limits.

    The shared control plane has podTemplate full. The namespace enforces no Pod Security, which
    would hide the policy.
    """
    cluster, flags = control_plane.cluster, (f"operator.watchNamespaces={{{namespace}}}", *values)
    label = "pod-security.kubernetes.io/enforce=privileged"
    cluster.kubectl("label", "--overwrite", "namespace", namespace, label)
    chart = operator_policy(cluster, "strict", *flags)
    cluster.kubectl("apply", "-f", "-", input=chart)
    try:
        async with powerful(control_plane, account("strict")) as strict:
            job = {**job_manifest(), "metadata": {"name": "a", "namespace": namespace, "uid": "u"}}
            wrong = changed(children_of(job, DEFAULTS)["pods"], ("spec", "hostPID"), True)
            pods = path_of("pods", namespace)

            async def enforced() -> bool:
                return CREATES_NO in await refusal(strict, "POST", pods, wrong)

            await eventually(enforced, "the API server enforces the policy")
            yield strict, defaults_of(cluster, "strict", *flags)
    finally:
        cluster.kubectl("delete", "-f", "-", input=chart)


async def accepted(
    api: Api, kind: str, namespace: str, mutations: Iterable[tuple[str, JSON]]
) -> list[tuple[str, JSON]]:
    """Return the objects that the API server accepts, by dry-run requests."""
    given = list(mutations)
    path = path_of(kind, namespace)
    answers = await asyncio.gather(*(refusal(api, "POST", path, made) for _, made in given))
    return [one for one, answer in zip(given, answers, strict=True) if answer == ""]


async def test_operator_creates_only_pods_that_its_builder_can_produce(
    control_plane: ControlPlane, api: Api, namespace: str
) -> None:
    """Change one field of a pod: the API server accepts it only if some job has such a pod."""
    admin = {"metadata": {"name": "admin"}}
    await api.call("POST", path_of("serviceaccounts", namespace), admin)
    async with strict_release(control_plane, namespace) as (strict, defaults):
        for name, spec in SPECS.items():
            if "priorityClassName" in str(spec):
                continue  # The class does not exist.
            job = {**job_manifest(**spec)}
            job["metadata"] |= {"namespace": namespace}
            for kind, child in children_of(job, defaults).items():
                assert await refusal(strict, "POST", path_of(kind, namespace), child) == "", name
        job = job_manifest(checkpoint={"claimName": "claim"})
        job["metadata"] |= {"namespace": namespace}
        pod = children_of(job, defaults)["pods"]
        mutations = [*named_mutations("pods", pod), *random_mutations(pod, RANDOM_MUTATIONS, SEED)]
        found = await accepted(strict, "pods", namespace, mutations)
        wrong = [name for name, made in found if not producible(job, made, defaults)]
        assert not wrong, "\n".join(wrong)
        assert 20 < len(found) < len(mutations) / 2


async def test_policy_allows_services_and_network_policies_only_for_the_jobs_own_pods(
    control_plane: ControlPlane, namespace: str
) -> None:
    async with strict_release(control_plane, namespace) as (strict, defaults):
        job = job_manifest()
        job["metadata"] |= {"namespace": namespace}
        children = children_of(job, defaults)
        for kind in ("services", "networkpolicies"):
            child = children[kind]
            mutations = [*named_mutations(kind, child), *random_mutations(child, 100, SEED)]
            mutations = [(name, made) for name, made in mutations if not _same(made, child)]
            found = await accepted(strict, kind, namespace, mutations)
            assert not found, "\n".join(name for name, _ in found)


def _same(made: JSON, child: JSON) -> bool:
    """Return whether a change means nothing: an allowed annotation, or a default."""
    metadata = made.get("metadata")
    owners = metadata.get("ownerReferences") if isinstance(metadata, dict) else None
    if not isinstance(owners, list) or not all(isinstance(owner, dict) for owner in owners):
        return False
    completed = [{"blockOwnerDeletion": False, **owner} for owner in owners]
    made = changed(made, ("metadata", "ownerReferences"), completed)
    annotations = ("metadata", "annotations")
    given = made["metadata"].get("annotations", {})
    if isinstance(given, dict) and all(allows_annotation(ANNOTATIONS, key) for key in given):
        made = changed(made, annotations, {})
    made["metadata"].setdefault("namespace", child["metadata"]["namespace"])
    if child["kind"] == "NetworkPolicy" and isinstance(made.get("spec"), dict):
        made["spec"]["policyTypes"] = made["spec"].get("policyTypes") or ["Ingress"]
    return made == changed(child, annotations, {}) or made == child


@pytest.mark.parametrize("values", [("podTemplate=off",), ("workers.user=assigned",)])
async def test_policy_allows_the_operators_pods_with_other_values_of_the_chart(
    control_plane: ControlPlane, namespace: str, values: tuple[str, ...]
) -> None:
    async with strict_release(control_plane, namespace, *values) as (strict, defaults):
        for name in ("nothing", "every field that shapes a pod"):
            job = job_manifest(**SPECS[name])
            job["metadata"] |= {"namespace": namespace}
            pods, pod = path_of("pods", namespace), children_of(job, defaults)["pods"]
            assert await refusal(strict, "POST", pods, pod) == ""
            of_pod, of_worker = ("spec", "securityContext"), ("spec", "containers", 0)
            selinux = (*of_worker, "securityContext", "seLinuxOptions")
            for path, value, what, field in (
                (("spec", "hostPID"), True, "this field,", ": hostPID"),
                ((*of_pod, "runAsUser"), 0, "this value of spec.securityContext,", ""),
                (selinux, {"type": "spc_t"}, "this security context of a container,", ""),
            ):
                answer = await refusal(strict, "POST", pods, changed(pod, path, value))
                assert f"{CREATES_NO} {what}" in answer
                assert field in answer
        elsewhere = changed(pod, ("metadata", "namespace"), SYSTEM_NAMESPACE)
        own = path_of("pods", SYSTEM_NAMESPACE)
        assert SERVED in await refusal(strict, "POST", own, elsewhere)


async def test_policy_allows_the_operator_only_the_updates_that_it_needs(
    operator: Api, api: Api, namespace: str, children: dict[str, JSON]
) -> None:
    """An update of the operator's own object cannot make it an object of another workload."""
    for kind, child in children.items():
        await api.call("POST", path_of(kind, namespace), child)
    owner = children["pods"]["metadata"]["ownerReferences"][0]
    pod, own = path_of("pods", namespace, "digits-0"), {"kind": "Pod", "name": "a", "uid": "b"}
    for allowed in (
        {"metadata": {"annotations": {"ddp-trainer.dev/attempt": "2"}}},
        {"metadata": {"annotations": {"ddp-trainer.dev/attempt": "stop"}}},
        {"spec": {"activeDeadlineSeconds": 1}},
    ):
        assert await refusal(operator, "PATCH", pod, allowed) == ""
    for refused in (
        {"metadata": {"labels": {"app": "frontend"}}},
        {"metadata": {"labels": {"app": "frontend"}, "ownerReferences": None}},
        {"metadata": {"labels": {"ddp-trainer.dev/job-uid": "other"}}},
        {"metadata": {"labels": {"ddp-trainer.dev/job-uid": None}}},
        {"metadata": {"annotations": {"ddp-trainer.dev/attempt": "$(x)"}}},
        {"metadata": {"annotations": {"ddp-trainer.dev/spec-hash": "0"}}},
        {"metadata": {"annotations": {"prometheus.io/port": None}}},
        {"metadata": {"annotations": {"a.example/b": "c"}}},
        {"metadata": {"finalizers": ["a.example/b"]}},
        {"metadata": {"ownerReferences": None}},
        {"metadata": {"ownerReferences": [owner, own | {"apiVersion": "v1"}]}},
        {"spec": {"activeDeadlineSeconds": 9}},
        {
            "spec": {
                "tolerations": [*children["pods"]["spec"]["tolerations"], {"operator": "Exists"}]
            }
        },
    ):
        assert CHANGES_ONLY in await refusal(operator, "PATCH", pod, refused), refused
    service = path_of("services", namespace, "digits")
    changes: list[dict[str, Any]] = [
        {"selector": {"app": "database"}},
        {"externalIPs": ["10.96.0.10"]},
        {"publishNotReadyAddresses": False},
        {"ports": [{"name": "agent", "port": 53}]},
    ]
    for spec in changes:
        answer = await refusal(operator, "PATCH", service, {"spec": spec})
        assert "may write only the headless" in answer
    await api.call(
        "PATCH", service, {"spec": {"selector": {"app": "a"}, "sessionAffinity": "ClientIP"}}
    )
    mine = {"spec": {"selector": {"app": None, **children["services"]["spec"]["selector"]}}}
    assert await refusal(operator, "PATCH", service, mine) == ""
    policy = path_of("networkpolicies", namespace, "digits")
    for refused in ({"spec": {"podSelector": {"matchLabels": None}}}, {"spec": {"egress": [{}]}}):
        answer = await refusal(operator, "PATCH", policy, refused)
        assert "may write only the NetworkPolicy" in answer
    for path in (service, policy):
        assert OTHER_OBJECTS in await refusal(operator, "DELETE", path)
    event = {"metadata": {"name": "a"}, "involvedObject": {"kind": "Node", "namespace": namespace}}
    assert OTHER_OBJECTS in await refusal(operator, "POST", path_of("events", namespace), event)
