"""Manifests on pages and among the samples are valid. The tests need no cluster."""

import json

import pytest

from tests.docs.objects import problems
from tests.docs.pages import ROOT, fenced

JOB = """
apiVersion: ddp-trainer.dev/v1alpha1
kind: DDPJob
metadata: {name: digits}
spec: {nodes: 2, task: ddp_trainer.tasks.miniresnet:build, config: {epochs: 20}}
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: reader}
spec:
  containers:
    - {name: reader, image: busybox, command: [sleep, "60"]}
"""


def test_objects_on_the_pages_are_valid() -> None:
    blocks = fenced("yaml")
    assert len(blocks) > 15
    assert [(b.place, wrong) for b in blocks for wrong in problems(b.text)] == []


def test_objects_among_the_samples_are_valid() -> None:
    files = sorted((ROOT / "manifests" / "samples").rglob("*.yaml"))
    assert len(files) > 14
    found = [(f.name, wrong) for f in files for wrong in problems(f.read_text(encoding="utf-8"))]
    assert found == []


def test_documents_in_json_on_the_pages_are_valid() -> None:
    for block in fenced("json"):
        json.loads(block.text)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (JOB.replace("epochs", "epoch"), "epoch"),
        (JOB.replace("nodes", "node"), "spec.node: unknown field"),
        (f"{JOB}---{POD.replace('image', 'imago')}", "Pod.spec.containers[0].imago: unknown field"),
        (POD.replace("metadata: {name: reader}", ""), "metadata.name is missing"),
        (POD.replace("v1", "v2"), "no test knows the kind ('v2', 'Pod')"),
        ("spec: {nodes: 0}", "spec.nodes"),
        ("elastic: {minNode: 1}", "minNode"),
        ("nods: 2", "not fields of a DDPJob: nods"),
        ("notifications: {uri: x}", "value of the chart: Additional properties"),
        ("a: [", "expected"),
        ("text", "it holds no object"),
    ],
)
def test_invalid_object_is_found(text: str, wrong: str) -> None:
    assert wrong in " ".join(problems(text))


@pytest.mark.parametrize("text", [JOB, POD, "spec: {nodes: 3}", "elastic: {minNodes: 1}"])
def test_valid_object_has_no_problem(text: str) -> None:
    assert problems(text) == []
