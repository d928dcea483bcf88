"""Tests of the manifests that `helm template` renders from the chart."""

import functools
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from ddp_operator.builders.pod import build_pod
from ddp_operator.runtime.settings import Settings
from tests.harness import binaries
from tests.harness.install import EXAMPLE_IMAGES, ROOT
from tests.operator.support import AGENT_CLIENTS, DEFAULTS, new_job

pytestmark = pytest.mark.api

ELECTION = "ddp-trainer-leader-election"


@functools.cache
def template(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [str(binaries.helm()), "template", "ddp-trainer", str(ROOT / "charts")]
    command += [*EXAMPLE_IMAGES, *flags]  # The last value of a name takes effect.
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def rendered(*flags: str) -> list[dict[str, Any]]:
    """Return what `helm install` creates, without the objects of `helm test`."""
    result = template("--namespace", "ddp-system", "--no-hooks", *flags)
    assert result.returncode == 0, result.stderr
    # libyaml parses the manifest, with its CRD and dashboards, 15 times faster.
    documents = yaml.load_all(result.stdout, Loader=yaml.CSafeLoader)
    return [document for document in documents if document]


def find_one(documents: list[dict[str, Any]], kind: str, name: str = "") -> dict[str, Any]:
    found = [
        d for d in documents if d["kind"] == kind and (not name or d["metadata"]["name"] == name)
    ]
    assert len(found) == 1, [(d["kind"], d["metadata"]["name"]) for d in documents]
    return found[0]


def test_chart_installs_the_generated_crd_and_keeps_it_on_uninstall() -> None:
    crd = find_one(rendered(), "CustomResourceDefinition")
    generated = yaml.safe_load((ROOT / "manifests" / "crd" / "ddpjobs.yaml").read_text("utf-8"))
    assert crd["spec"] == generated["spec"]
    assert crd["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_crd_can_be_disabled() -> None:
    kinds = {document["kind"] for document in rendered("--set", "crds.enabled=false")}
    assert "CustomResourceDefinition" not in kinds


@pytest.mark.parametrize("user", ["1000", "assigned"])
def test_worker_pods_get_the_user_and_the_shared_memory_of_the_values(user: str) -> None:
    documents = rendered("--set", f"workers.user={user},workers.sharedMemory=16Gi")
    container = find_one(documents, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    assert {"name": "DDP_OPERATOR_WORKER_USER", "value": user} in container["env"]
    assert {"name": "DDP_OPERATOR_SHARED_MEMORY", "value": "16Gi"} in container["env"]


@pytest.mark.parametrize("label", ["nvidia.com/gpu.product", "cloud.google.com/gke-accelerator"])
def test_operator_gets_the_label_of_gpu_products(label: str) -> None:
    changed = label != DEFAULTS.gpu_product_label
    documents = rendered(*(("--set", f"workers.gpuProductLabel={label}") if changed else ()))
    assert environment_of(documents)["DDP_OPERATOR_GPU_PRODUCT_LABEL"] == label


def environment_of(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the variables of the operator's container."""
    container = find_one(documents, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    return {v["name"]: v.get("value") for v in container["env"]}


def network_rules(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rules = find_one(documents, "ClusterRole", "ddp-trainer")["rules"]
    return [rule for rule in rules if "networkpolicies" in rule["resources"]]


def test_network_policy_lets_operator_and_scrapers_connect_to_agents() -> None:
    documents = rendered()
    settings = {**environment_of(documents), "DDP_OPERATOR_LEASE_NAMESPACE": "ddp-system"}
    peers = Settings.from_environment(settings).agent_clients
    assert peers is not None
    assert peers == AGENT_CLIENTS, "the admission policy refuses the policies of tests/api"
    operator, scraper = (peer.to_manifest() for peer in peers)
    namespace = {"kubernetes.io/metadata.name": "ddp-system"}
    assert operator["namespaceSelector"] == {"matchLabels": namespace}
    pod = find_one(documents, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert operator["podSelector"]["matchLabels"].items() <= pod.items()
    assert len(operator["podSelector"]["matchLabels"]) == 3
    assert scraper == {
        "namespaceSelector": {},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}},
    }
    verbs = ["get", "list", "watch", "create", "patch"]
    resource = {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"]}
    assert network_rules(documents) == [{**resource, "verbs": verbs}]


def test_network_policies_and_their_permissions_can_be_switched_off() -> None:
    documents = rendered("--set", "networkPolicy.enabled=false")
    assert "DDP_OPERATOR_AGENT_CLIENTS" not in environment_of(documents)
    assert network_rules(documents) == []


def test_operator_pod_meets_the_restricted_pod_security_standard() -> None:
    spec = find_one(rendered(), "Deployment")["spec"]["template"]["spec"]
    container = spec["containers"][0]["securityContext"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["capabilities"] == {"drop": ["ALL"]}
    assert container["allowPrivilegeEscalation"] is False
    assert container["readOnlyRootFilesystem"] is True


@pytest.mark.parametrize(
    ("flags", "image"),
    [
        ((), "registry.example/ddp-trainer/operator:0.1.0"),
        (("--set", "image.tag=1.2"), "registry.example/ddp-trainer/operator:1.2"),
        (
            ("--set", f"image.digest=sha256:{'a' * 64}"),
            f"registry.example/ddp-trainer/operator@sha256:{'a' * 64}",
        ),
        (
            ("--set", "image.repository=ml/operator,global.imageRegistry=registry.corp:5000"),
            "registry.corp:5000/ml/operator:0.1.0",
        ),
        (
            ("--set", "global.imageRegistry=registry.corp:5000"),
            "registry.example/ddp-trainer/operator:0.1.0",
        ),
    ],
    ids=["default", "tag", "digest", "registry of a parent", "registry of its own"],
)
def test_image_reference_uses_tag_or_digest(flags: tuple[str, ...], image: str) -> None:
    spec = find_one(rendered(*flags), "Deployment")["spec"]["template"]["spec"]
    assert spec["containers"][0]["image"] == image


def test_replicas_elect_a_leader_with_a_lease_of_the_release() -> None:
    documents = rendered()
    deployment = find_one(documents, "Deployment")["spec"]
    assert deployment["replicas"] == 1
    assert deployment["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1},
    }
    variables = {v["name"]: v for v in deployment["template"]["spec"]["containers"][0]["env"]}
    assert variables["DDP_OPERATOR_LEADER_ELECTION"]["value"] == "true"
    assert variables["DDP_OPERATOR_LEASE_NAME"]["value"] == "ddp-trainer-operator"
    for name, field in (("LEASE_NAMESPACE", "namespace"), ("IDENTITY", "name")):
        source = variables[f"DDP_OPERATOR_{name}"]["valueFrom"]
        assert source == {"fieldRef": {"fieldPath": f"metadata.{field}"}}


def test_lease_permissions_are_limited_to_the_lease_of_the_release() -> None:
    documents = rendered()
    role, binding = (
        find_one(documents, "Role", ELECTION),
        find_one(documents, "RoleBinding", ELECTION),
    )
    leases = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}
    assert role["rules"] == [
        {**leases, "verbs": ["create"]},
        {**leases, "resourceNames": ["ddp-trainer-operator"], "verbs": ["get", "update"]},
    ]
    assert role["metadata"]["namespace"] == binding["metadata"]["namespace"] == "ddp-system"
    assert binding["roleRef"]["name"] == ELECTION
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": "ddp-trainer", "namespace": "ddp-system"}
    ]


def test_deployment_without_leader_election_recreates_its_pod() -> None:
    documents = rendered("--set", "leaderElection.enabled=false")
    deployment = find_one(documents, "Deployment")["spec"]
    assert deployment["strategy"] == {"type": "Recreate"}
    variables = {v["name"]: v for v in deployment["template"]["spec"]["containers"][0]["env"]}
    assert variables["DDP_OPERATOR_LEADER_ELECTION"]["value"] == "false"
    assert "DDP_OPERATOR_LEASE_NAMESPACE" not in variables
    assert not [d for d in documents if d["kind"] == "Role"]


def test_several_replicas_are_spread_and_drained_one_at_a_time() -> None:
    documents = rendered("--set", "replicaCount=3")
    deployment = find_one(documents, "Deployment")["spec"]
    assert deployment["replicas"] == 3
    selector = deployment["selector"]
    spread = deployment["template"]["spec"]["topologySpreadConstraints"]
    assert [s["whenUnsatisfiable"] for s in spread] == ["ScheduleAnyway"] * 2
    assert all(s["labelSelector"] == selector for s in spread)
    budget = find_one(documents, "PodDisruptionBudget")["spec"]
    # A replica that never becomes ready must not block a drain.
    always = {"unhealthyPodEvictionPolicy": "AlwaysAllow"}
    assert budget == {"maxUnavailable": 1, "selector": selector, **always}


def test_single_replica_has_no_disruption_budget_that_blocks_a_drain() -> None:
    documents = rendered()
    assert not [d for d in documents if d["kind"] == "PodDisruptionBudget"]
    spec = find_one(documents, "Deployment")["spec"]["template"]["spec"]
    assert "topologySpreadConstraints" not in spec


def test_operator_leaves_a_lost_kubernetes_node_after_30_seconds() -> None:
    spec = find_one(rendered(), "Deployment")["spec"]["template"]["spec"]
    seconds = {t["key"]: t["tolerationSeconds"] for t in spec["tolerations"]}
    reasons = ("not-ready", "unreachable")
    assert seconds == {f"node.kubernetes.io/{reason}": 30 for reason in reasons}


def test_operator_pod_gets_pull_secrets_and_labels() -> None:
    flags = ("--set", "imagePullSecrets={a,b}", "--set", "podLabels.team=x")
    template_ = find_one(rendered(*flags), "Deployment")["spec"]["template"]
    assert template_["spec"]["imagePullSecrets"] == [{"name": "a"}, {"name": "b"}]
    assert template_["metadata"]["labels"]["team"] == "x"


def test_pull_secrets_may_be_names_or_objects_or_come_from_a_parent_chart() -> None:
    given = ("--set-json", 'imagePullSecrets=[{"name":"a"},"b"]')
    parents = ("--set-json", 'global.imagePullSecrets=["b",{"name":"c"}]')
    spec = find_one(rendered(*given, *parents), "Deployment")["spec"]["template"]["spec"]
    assert spec["imagePullSecrets"] == [{"name": "a"}, {"name": "b"}, {"name": "c"}]


@pytest.mark.parametrize("name", ["image", "trainerImage"])
def test_chart_without_an_image_says_what_to_set(name: str) -> None:
    result = template("--set", f"{name}.repository=")
    assert result.returncode != 0
    assert f"{name}.repository must be set, for example to registry.example/" in result.stderr


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("replicas=2", "additional properties 'replicas' not allowed"),
        ("image.digest=abc", "image/digest"),
        ("operator.logLevel=LOUD", "operator/logLevel"),
        ("workers.user=0", "workers/user"),
        ("workers.sharedMemory=much", "workers/sharedMemory"),
        ("workers.gpuProductLabel=a b", "workers/gpuProductLabel"),
        ("workers.hostPorts=20000", "workers/hostPorts"),
        ("operator.logFormat=xml", "operator/logFormat"),
        ("networkPolicy.scrapers[0].podSelectr.a=b", "networkPolicy/scrapers/0"),
        ("replicaCount=0", "replicaCount"),
        ("replicaCount=6", "replicaCount"),
        (
            "replicaCount=2,leaderElection.enabled=false",
            "replicaCount must be 1 when leaderElection.enabled is false",
        ),
    ],
)
def test_invalid_value_is_rejected(flag: str, message: str) -> None:
    result = template("--set", flag)
    assert result.returncode != 0
    assert message in result.stderr


def test_helm_lint_reports_no_problem() -> None:
    command = [str(binaries.helm()), "lint", "--strict", str(Path(ROOT, "charts"))]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 0, result.stdout


POD_MONITORS = ("--api-versions", "monitoring.coreos.com/v1/PodMonitor")


def test_pod_monitors_are_installed_with_the_prometheus_operator_alone() -> None:
    assert "PodMonitor" not in {d["kind"] for d in rendered()}
    assert "PodMonitor" not in {
        d["kind"] for d in rendered(*POD_MONITORS, "--set", "metrics.podMonitors=false")
    }
    found = [d for d in rendered(*POD_MONITORS) if d["kind"] == "PodMonitor"]
    assert [d["metadata"]["name"] for d in found] == ["ddp-trainer-operator", "ddp-trainer-workers"]
    chosen = rendered(*POD_MONITORS, "--set", "operator.watchNamespaces={team-a,team-b}")
    for documents, selector in (
        (chosen, {"matchNames": ["team-a", "team-b"]}),
        (rendered(*POD_MONITORS), {"any": True}),
    ):
        workers = find_one(documents, "PodMonitor", "ddp-trainer-workers")
        assert workers["spec"]["namespaceSelector"] == selector


def test_pod_monitors_name_the_ports_of_the_pods() -> None:
    documents = rendered(*POD_MONITORS, "--set", "metrics.labels.release=prometheus")
    operator = find_one(documents, "PodMonitor", "ddp-trainer-operator")
    pod = find_one(documents, "Deployment")["spec"]["template"]
    ports = {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
    [endpoint] = operator["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] in ports
    assert operator["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert operator["metadata"]["labels"]["release"] == "prometheus"
    workers = find_one(documents, "PodMonitor", "ddp-trainer-workers")
    worker = build_pod(new_job(), 0, 1, DEFAULTS)
    ports = {port["name"] for port in worker["spec"]["containers"][0]["ports"]}
    assert workers["spec"]["podMetricsEndpoints"][0]["port"] in ports
    assert (
        workers["spec"]["selector"]["matchLabels"].items() <= worker["metadata"]["labels"].items()
    )


def test_worker_pod_cannot_export_series_of_another_job() -> None:
    """A tenant decides which metrics its pods serve."""
    workers = find_one(rendered(*POD_MONITORS), "PodMonitor", "ddp-trainer-workers")["spec"]
    [endpoint] = workers["podMetricsEndpoints"]
    scraped = yaml.safe_load((ROOT / "manifests/prometheus/scrape.yaml").read_text("utf-8"))
    plain = next(j for j in scraped["scrape_configs"] if j["job_name"] == "ddp-trainer-workers")
    assert endpoint["honorLabels"] is plain["honor_labels"] is False
    assert workers["sampleLimit"] == plain["sample_limit"] == 5000
    named = {one["targetLabel"] for one in endpoint["relabelings"]}
    assert named == {"ddpjob", "node_index", "node"}
    # The Prometheus Operator itself adds the namespace and the pod.
    also = {one["target_label"] for one in plain["relabel_configs"] if "target_label" in one}
    assert also == named | {"namespace", "pod"}


def test_only_pods_in_the_operators_namespace_are_scraped_as_the_operator() -> None:
    """Prometheus trusts the namespace label of the operator's series, and alerts select by it."""
    monitor = find_one(rendered(*POD_MONITORS), "PodMonitor", "ddp-trainer-operator")
    assert "namespaceSelector" not in monitor["spec"]  # Its own namespace, that of the release.
    assert monitor["spec"]["podMetricsEndpoints"][0]["honorLabels"]
    folder = ROOT / "manifests/prometheus"
    scraped = yaml.safe_load((folder / "scrape.yaml").read_text("utf-8"))["scrape_configs"]
    trusted = [job for job in scraped if job["honor_labels"]]
    assert [job["job_name"] for job in trusted] == ["ddp-trainer-operator"]
    [discovery] = trusted[0]["kubernetes_sd_configs"]
    [namespace] = discovery["namespaces"]["names"]
    assert f'ddp_operator_leader{{namespace="{namespace}"}}' in (folder / "rules.yaml").read_text()


@pytest.mark.parametrize(
    ("flags", "scraped"), [((), True), (("--set", "metrics.annotations=false"), False)]
)
def test_operator_pod_has_scrape_annotations_unless_they_are_off(
    flags: tuple[str, ...], scraped: bool
) -> None:
    metadata = find_one(rendered(*flags), "Deployment")["spec"]["template"]["metadata"]
    annotations = metadata.get("annotations", {})
    assert (annotations.get("prometheus.io/scrape") == "true") is scraped
    mine = rendered(*flags, "--set", "podAnnotations.team=ml")
    metadata = find_one(mine, "Deployment")["spec"]["template"]["metadata"]
    assert metadata["annotations"] == {**annotations, "team": "ml"}
