"""Test of the chart as a dependency of another chart."""

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.chart.test_chart import rendered
from tests.harness import binaries
from tests.harness.install import ROOT

pytestmark = pytest.mark.api
ROLES = (("image", "operator"), ("trainerImage", "trainer"))


def test_chart_works_as_a_subchart_with_a_condition(tmp_path: Path) -> None:
    """The parent chart is packaged, and so is this chart within it, without a network."""
    parent = tmp_path / "platform"
    (parent / "templates").mkdir(parents=True)
    dependency = {
        "name": "ddp-trainer",
        "version": "0.1.0",
        "repository": f"file://{ROOT / 'charts'}",
        "condition": "ddp-trainer.enabled",
    }
    chart = {"apiVersion": "v2", "name": "platform", "version": "1.0.0"}
    images = {name: {"repository": f"registry.example/ddp-trainer/{role}"} for name, role in ROLES}
    own = {"enabled": True, "fullnameOverride": "ddp-trainer", **images}
    values = {"ddp-trainer": own}
    (parent / "Chart.yaml").write_text(json.dumps({**chart, "dependencies": [dependency]}))
    (parent / "values.yaml").write_text(json.dumps(values))
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "of-the-parent"}}
    (parent / "templates" / "own.yaml").write_text(json.dumps(config_map))
    helm("package", str(parent), "--dependency-update", "--destination", str(tmp_path))

    archive = str(tmp_path / "platform-1.0.0.tgz")
    release = ("template", "platform", archive, "--namespace", "ddp-system", "--no-hooks")
    on = [d for d in yaml.safe_load_all(helm(*release)) if d]
    alone = {(d["kind"], d["metadata"]["name"]) for d in rendered()}
    assert {(d["kind"], d["metadata"]["name"]) for d in on} == alone | {
        ("ConfigMap", "of-the-parent")
    }
    off = helm(*release, "--set", "ddp-trainer.enabled=false")
    assert [d["metadata"]["name"] for d in yaml.safe_load_all(off) if d] == ["of-the-parent"]


def helm(*arguments: str) -> str:
    """Run helm and return its output."""
    command = [binaries.helm(), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout
