"""Tests of install.yaml, and of the kustomization in the documentation that sets its images."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.test_chart import find_one, rendered
from tests.harness import binaries
from tests.harness.install import ROOT
from tools.install_manifest import NAME, build_install_manifest

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


@pytest.fixture(scope="module")
def text() -> str:
    return build_install_manifest()


def objects(text: str) -> list[JSON]:
    return [d for d in yaml.safe_load_all(text) if d]


def container_and_variables(documents: list[JSON]) -> tuple[JSON, JSON]:
    """Return the container of the operator, and the values of its variables by name."""
    deployment = find_one(documents, "Deployment")
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    return container, {v["name"]: v.get("value") for v in container["env"]}


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


def test_install_manifest_has_the_namespace_and_the_objects_of_the_chart(text: str) -> None:
    namespace, *others = objects(text)
    assert namespace["metadata"]["name"] == "ddp-system"
    assert namespace["metadata"]["labels"] == {"pod-security.kubernetes.io/enforce": "restricted"}
    expected = [without_helm(d) for d in rendered()]
    assert by_name(others) == by_name(expected)
    assert "helm" not in text.lower()


def test_command_writes_the_manifest_with_the_images_of_a_registry(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tools.install_manifest", "--output", str(tmp_path / "new")]
    command += ["--registry", "registry.internal/ddp"]
    subprocess.run(command, check=True, timeout=60)
    written = objects((tmp_path / "new" / NAME).read_text("utf-8"))
    container, variables = container_and_variables(written)
    assert container["image"] == "registry.internal/ddp/operator:0.1.0"
    assert variables["DDP_OPERATOR_TRAINER_IMAGE"] == "registry.internal/ddp/trainer:0.1.0"


def test_overlay_of_the_documentation_sets_both_images(text: str, tmp_path: Path) -> None:
    pages = "".join(p.read_text("utf-8") for p in (ROOT / "docs" / "operate").glob("*.md"))
    [overlay] = re.findall(r"```yaml\n(resources: \[install.yaml\]\n.*?)```", pages, re.DOTALL)
    (tmp_path / "kustomization.yaml").write_text(overlay)
    (tmp_path / NAME).write_text(text)
    documents = kustomized(tmp_path)
    assert by_name(documents).keys() == by_name(objects(text)).keys()
    container, variables = container_and_variables(documents)
    assert container["image"] == "registry.internal/ddp-trainer/operator:0.1.0"
    trainer = variables["DDP_OPERATOR_TRAINER_IMAGE"]
    assert trainer == "registry.internal/ddp-trainer/trainer:0.1.0"
    assert variables.keys() == container_and_variables(objects(text))[1].keys()
