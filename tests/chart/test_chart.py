"""What `helm template` makes of the chart's values."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.harness import binaries
from tests.tools.install import ROOT

pytestmark = pytest.mark.api

ELECTION = "ddp-trainer-leader-election"


def template(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [str(binaries.helm()), "template", "ddp-trainer", str(ROOT / "charts"), *flags]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def rendered(*flags: str) -> list[dict[str, Any]]:
    done = template("--namespace", "ddp-system", *flags)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def one(documents: list[dict[str, Any]], kind: str, name: str = "") -> dict[str, Any]:
    found = [
        d for d in documents if d["kind"] == kind and (not name or d["metadata"]["name"] == name)
    ]
    assert len(found) == 1, [(d["kind"], d["metadata"]["name"]) for d in documents]
    return found[0]


def test_the_chart_installs_the_generated_crd_and_keeps_it() -> None:
    crd = one(rendered(), "CustomResourceDefinition")
    generated = yaml.safe_load((ROOT / "manifests" / "crd" / "ddpjobs.yaml").read_text("utf-8"))
    assert crd["spec"] == generated["spec"]
    assert crd["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_the_crd_can_be_left_out() -> None:
    kinds = {document["kind"] for document in rendered("--set", "crds.enabled=false")}
    assert "CustomResourceDefinition" not in kinds


def test_rights_are_for_the_whole_cluster_or_for_one_namespace() -> None:
    everywhere = rendered()
    one(everywhere, "ClusterRoleBinding")
    assert {d["metadata"]["name"] for d in everywhere if d["kind"] == "Role"} == {ELECTION}
    inside = rendered("--set", "operator.watchNamespace=team")
    for kind in ("Role", "RoleBinding"):
        assert one(inside, kind, "ddp-trainer")["metadata"]["namespace"] == "team"
        assert one(inside, kind, ELECTION)["metadata"]["namespace"] == "ddp-system"
    assert not [d for d in inside if d["kind"] == "ClusterRoleBinding"]
    container = one(inside, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    assert {"name": "DDP_OPERATOR_NAMESPACE", "value": "team"} in container["env"]


def test_the_operator_has_no_wildcards_secrets_nodes_or_exec() -> None:
    rules = one(rendered(), "ClusterRole", "ddp-trainer")["rules"]
    words = {word for rule in rules for key in rule for word in rule[key]}
    assert "*" not in words
    assert not words & {"secrets", "nodes", "pods/exec", "serviceaccounts"}


def test_the_operator_fits_restricted_pod_security() -> None:
    spec = one(rendered(), "Deployment")["spec"]["template"]["spec"]
    container = spec["containers"][0]["securityContext"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["capabilities"] == {"drop": ["ALL"]}
    assert container["allowPrivilegeEscalation"] is False
    assert container["readOnlyRootFilesystem"] is True


@pytest.mark.parametrize(
    ("flags", "image"),
    [
        ((), "ddp-trainer/operator:0.1.0"),
        (("--set", "image.tag=1.2"), "ddp-trainer/operator:1.2"),
        (
            ("--set", f"image.digest=sha256:{'a' * 64}"),
            f"ddp-trainer/operator@sha256:{'a' * 64}",
        ),
    ],
    ids=["default", "tag", "digest"],
)
def test_the_image_is_named_by_tag_or_digest(flags: tuple[str, ...], image: str) -> None:
    spec = one(rendered(*flags), "Deployment")["spec"]["template"]["spec"]
    assert spec["containers"][0]["image"] == image


def test_replicas_elect_a_leader_by_a_lease_of_the_release() -> None:
    documents = rendered()
    deployment = one(documents, "Deployment")["spec"]
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


def test_the_rights_to_the_lease_are_no_wider_than_needed() -> None:
    documents = rendered()
    role, binding = one(documents, "Role", ELECTION), one(documents, "RoleBinding", ELECTION)
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


def test_without_election_there_are_never_two_processes() -> None:
    documents = rendered("--set", "leaderElection.enabled=false")
    deployment = one(documents, "Deployment")["spec"]
    assert deployment["strategy"] == {"type": "Recreate"}
    variables = {v["name"]: v for v in deployment["template"]["spec"]["containers"][0]["env"]}
    assert variables["DDP_OPERATOR_LEADER_ELECTION"]["value"] == "false"
    assert "DDP_OPERATOR_LEASE_NAMESPACE" not in variables
    assert not [d for d in documents if d["kind"] == "Role"]


def test_several_replicas_are_spread_and_drained_one_by_one() -> None:
    documents = rendered("--set", "replicaCount=3")
    deployment = one(documents, "Deployment")["spec"]
    assert deployment["replicas"] == 3
    selector = deployment["selector"]
    spread = deployment["template"]["spec"]["topologySpreadConstraints"]
    assert [s["whenUnsatisfiable"] for s in spread] == ["ScheduleAnyway"] * 2
    assert all(s["labelSelector"] == selector for s in spread)
    budget = one(documents, "PodDisruptionBudget")["spec"]
    assert budget == {"maxUnavailable": 1, "selector": selector}


def test_a_single_replica_has_no_budget_that_would_block_a_drain() -> None:
    documents = rendered()
    assert not [d for d in documents if d["kind"] == "PodDisruptionBudget"]
    spec = one(documents, "Deployment")["spec"]["template"]["spec"]
    assert "topologySpreadConstraints" not in spec


def test_an_operator_on_a_lost_node_moves_sooner_than_after_five_minutes() -> None:
    spec = one(rendered(), "Deployment")["spec"]["template"]["spec"]
    seconds = {t["key"]: t["tolerationSeconds"] for t in spec["tolerations"]}
    reasons = ("not-ready", "unreachable")
    assert seconds == {f"node.kubernetes.io/{reason}": 30 for reason in reasons}


def test_pull_secrets_and_labels_reach_the_pod() -> None:
    flags = ("--set", "imagePullSecrets={a,b}", "--set", "podLabels.team=x")
    template_ = one(rendered(*flags), "Deployment")["spec"]["template"]
    assert template_["spec"]["imagePullSecrets"] == [{"name": "a"}, {"name": "b"}]
    assert template_["metadata"]["labels"]["team"] == "x"


@pytest.mark.parametrize(
    ("flag", "sentence"),
    [
        ("replicas=2", "additional properties 'replicas' not allowed"),
        ("image.digest=abc", "image/digest"),
        ("operator.logLevel=LOUD", "operator/logLevel"),
        ("operator.logFormat=xml", "operator/logFormat"),
        ("replicaCount=0", "replicaCount"),
        ("replicaCount=6", "replicaCount"),
        (
            "replicaCount=2,leaderElection.enabled=false",
            "replicaCount must be 1 when leaderElection.enabled is false",
        ),
    ],
)
def test_a_wrong_value_is_refused(flag: str, sentence: str) -> None:
    done = template("--set", flag)
    assert done.returncode != 0
    assert sentence in done.stderr


def test_lint_has_no_findings() -> None:
    command = [str(binaries.helm()), "lint", "--strict", str(Path(ROOT, "charts"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout
