"""Tests of manifests/install.yaml and of the kustomize base around it."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.test_chart import find_one, rendered
from tests.harness import binaries
from tests.harness.install import ROOT
from tools.install_manifest import INSTALL, build_install_manifest

pytestmark = pytest.mark.api

JSON = dict[str, Any]
Name = tuple[str, str, str]
HELM_LABELS = {"helm.sh/chart", "app.kubernetes.io/managed-by"}


def by_name(documents: list[JSON]) -> dict[Name, JSON]:
    """Return the documents by kind, namespace and name."""
    found = {
        (d["kind"], d["metadata"].get("namespace", ""), d["metadata"]["name"]): d for d in documents
    }
    assert len(found) == len(documents)
    return found


def installed() -> list[JSON]:
    return [d for d in yaml.safe_load_all(INSTALL.read_text("utf-8")) if d]


def kustomized(folder: Path) -> list[JSON]:
    command = [binaries.kubectl(), "kustomize", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return list(yaml.safe_load_all(done.stdout))


def without_helm(document: JSON) -> JSON:
    """Return a rendered object without the labels and annotations of Helm."""
    metadata = dict(document["metadata"])
    metadata["labels"] = {k: v for k, v in metadata["labels"].items() if k not in HELM_LABELS}
    if "helm.sh/resource-policy" in metadata.get("annotations", {}):
        del metadata["annotations"]
    changed = {**document, "metadata": metadata}
    if "template" in changed.get("spec", {}):
        template = changed["spec"]["template"]
        changed["spec"] = {**changed["spec"], "template": without_helm(template)}
    return changed


def test_install_manifest_is_what_make_generate_writes() -> None:
    assert INSTALL.read_text("utf-8") == build_install_manifest(), "run `make generate`"


def test_install_manifest_has_the_namespace_and_the_objects_of_the_chart() -> None:
    namespace, *objects = installed()
    assert namespace["metadata"]["name"] == "ddp-system"
    assert namespace["metadata"]["labels"] == {"pod-security.kubernetes.io/enforce": "restricted"}
    expected = [without_helm(d) for d in rendered()]
    assert by_name(objects) == by_name(expected)
    assert "helm" not in INSTALL.read_text("utf-8").lower()


def test_kustomize_base_is_the_install_manifest() -> None:
    assert by_name(kustomized(ROOT / "manifests")) == by_name(installed())


def test_overlay_of_the_documentation_sets_both_images(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "operate" / "install.md").read_text("utf-8")
    [overlay] = re.findall(
        r"```yaml\n(resources: \[ddp-trainer/manifests\]\n.*?)```", text, re.DOTALL
    )
    (tmp_path / "kustomization.yaml").write_text(overlay)
    (tmp_path / "ddp-trainer").symlink_to(ROOT)
    documents = kustomized(tmp_path)
    deployment = find_one(documents, "Deployment")
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    variables = {v["name"]: v.get("value") for v in container["env"]}
    assert container["image"] == "registry.internal/ddp-trainer/operator:0.1.0"
    trainer = variables["DDP_OPERATOR_TRAINER_IMAGE"]
    assert trainer == "registry.internal/ddp-trainer/trainer:0.1.0"
    [before] = find_one(installed(), "Deployment")["spec"]["template"]["spec"]["containers"]
    assert len(container["env"]) == len(before["env"])
