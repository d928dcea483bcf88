"""What `helm template` makes of the chart's values."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.harness import binaries
from tests.tools.install import ROOT

pytestmark = pytest.mark.api


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
    assert not [d for d in everywhere if d["kind"] == "Role"]
    inside = rendered("--set", "operator.watchNamespace=team")
    assert one(inside, "Role")["metadata"]["namespace"] == "team"
    assert one(inside, "RoleBinding")["metadata"]["namespace"] == "team"
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


def test_pull_secrets_tolerations_and_labels_reach_the_pod() -> None:
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
