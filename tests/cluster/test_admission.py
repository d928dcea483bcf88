"""Tests that the API server rejects bad specs with a message that names field and rule."""

import copy
import json
from typing import Any

import pytest

from tests.cluster.support import sample
from tests.harness.cluster import Cluster

pytestmark = pytest.mark.api

CASES: dict[str, tuple[dict[str, Any], str]] = {
    "nodes-0": ({"nodes": 0}, "spec.nodes in body should be greater than or equal to 1"),
    "negative-procs": (
        {"procsPerNode": -1},
        "spec.procsPerNode in body should be greater than or equal to 1",
    ),
    "unknown-field": ({"nodez": 2}, 'unknown field "spec.nodez"'),
    "task-and-command": (
        {"command": ["python", "train.py"], "config": None},
        "task and command must not both be set",
    ),
    "neither": ({"task": None, "config": None}, "one of task and command must be set"),
    "config-as-text": ({"config": "epochs"}, "spec.config in body must be of type object"),
    "config-with-command": (
        {"task": None, "command": ["python", "train.py"]},
        "spec.config: may be set only with task",
    ),
    "args-with-task": ({"args": ["--x"]}, "spec.args: may be set only with command"),
    "own-variable": (
        {"env": [{"name": "DDP_NODES", "value": "3"}]},
        "names must not begin with DDP_, because ddp-trainer reserves this prefix",
    ),
    "mount-without-volume": (
        {"volumeMounts": [{"name": "data", "mountPath": "/data"}]},
        "spec.volumeMounts: each name must be the name of one of spec.volumes",
    ),
    "window": (
        {"restartWindowSeconds": 60, "maxRestarts": 31},
        "spec.restartWindowSeconds: requires spec.maxRestarts of at most 30",
    ),
    "bad-task": ({"task": "no-path"}, "spec.task in body should match"),
    "claim-missing": ({"checkpoint": {}}, "one of claimName and claimTemplate must be set"),
    "policy": ({"cleanPodPolicy": "Some"}, 'spec.cleanPodPolicy: Unsupported value: "Some"'),
}


def manifest(changes: dict[str, Any], name: str = "digits") -> str:
    job = copy.deepcopy(sample())
    job["metadata"]["name"] = name
    for key, value in changes.items():
        if value is None:
            job["spec"].pop(key, None)
        else:
            job["spec"][key] = value
    return json.dumps(job)


@pytest.mark.parametrize(("changes", "sentence"), CASES.values(), ids=CASES.keys())
def test_api_server_rejects_bad_spec_with_a_clear_message(
    cluster: Cluster, changes: dict[str, Any], sentence: str
) -> None:
    refused = cluster.kubectl("apply", "-f", "-", input=manifest(changes), check=False)
    assert refused.returncode != 0
    assert sentence in refused.stderr


@pytest.mark.parametrize("name", ["x" * 59, "1st", "a.b"], ids=["too-long", "digit", "dot"])
def test_api_server_rejects_name_that_is_no_dns_label(cluster: Cluster, name: str) -> None:
    refused = cluster.kubectl("apply", "-f", "-", input=manifest({}, name), check=False)
    assert refused.returncode != 0
    assert "metadata.name: must be a DNS label of at most 58 characters" in refused.stderr


def test_kubectl_explain_describes_the_spec(cluster: Cluster) -> None:
    text = cluster.kubectl("explain", "ddpjob.spec", "--recursive").stdout
    assert "procsPerNode" in text
    assert "claimName" in text
    detail = cluster.kubectl("explain", "ddpj.spec.nodes").stdout
    assert "Number of worker pods" in detail
