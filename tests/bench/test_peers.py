"""Peer operators get the same pods, keep their shipped settings, and are compared each repeat."""

from typing import Any

import pytest
import yaml

from bench.scale.goals import of_peers
from bench.scale.peer_manifests import (
    configuration,
    pod_template,
    pytorch_job,
    to_install,
    train_job,
    training_runtime,
)
from bench.scale.peers import Comparison, Run
from ddp_wire import contract
from tests.harness import gobuild

POD: dict[str, Any] = {
    "metadata": {
        "name": "gang-0",
        "labels": {contract.LABEL_MANAGED_BY: contract.MANAGED_BY, contract.LABEL_NODE_INDEX: "0"},
        "annotations": {contract.ANNOTATION_ATTEMPT: "0"},
    },
    "spec": {
        "nodeName": "fake-000",
        "hostname": "gang-0000",
        "subdomain": "gang",
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 60,
        "containers": [
            {
                "name": "worker",
                "image": "registry.example/trainer:1",
                "resources": {"limits": {"nvidia.com/gpu": "8"}},
                "volumeMounts": [{"name": "kube-api-access-x"}, {"name": "ddp-shm"}],
            }
        ],
        "volumes": [{"name": "kube-api-access-x"}, {"name": "ddp-shm"}],
    },
}
"""A pod of ddp-trainer's operator, as the API server returns it."""


def templates() -> list[dict[str, Any]]:
    """The pod templates of both peers."""
    worker = pytorch_job("gang", 3, POD)["spec"]["pytorchReplicaSpecs"]["Worker"]
    (node,) = training_runtime(POD)["spec"]["template"]["spec"]["replicatedJobs"]
    return [worker["template"], node["template"]["spec"]["template"]]


def test_pod_template_leaves_out_fields_that_every_peer_operator_sets() -> None:
    spec = pod_template(POD, "node")["spec"]
    assert not {"hostname", "subdomain", "restartPolicy", "nodeName"} & set(spec)
    assert spec["terminationGracePeriodSeconds"] == 60


def test_pods_of_peer_operators_run_our_container_under_the_required_name() -> None:
    ours = POD["spec"]["containers"][0]
    for template, name in zip(templates(), ("pytorch", "node"), strict=True):
        (container,) = template["spec"]["containers"]
        assert container["name"] == name
        assert container["image"] == ours["image"]
        assert container["resources"] == ours["resources"]
        assert container["volumeMounts"] == [{"name": "ddp-shm"}]


def test_our_operator_does_not_watch_the_pods_of_peers() -> None:
    for template in templates():
        assert template["metadata"]["labels"] == {contract.LABEL_NODE_INDEX: "0"}


def test_jobs_of_peers_have_the_given_number_of_pods() -> None:
    spec = pytorch_job("gang", 3, POD)["spec"]
    assert spec["pytorchReplicaSpecs"]["Worker"]["replicas"] == 3
    assert spec["elasticPolicy"]["minReplicas"] == spec["elasticPolicy"]["maxReplicas"] == 3
    assert train_job("gang", 3)["spec"]["trainer"]["numNodes"] == 3


def test_train_job_refers_to_the_runtime_of_its_namespace() -> None:
    runtime, reference = training_runtime(POD), train_job("gang", 3)["spec"]["runtimeRef"]
    assert reference == {"kind": runtime["kind"], "name": runtime["metadata"]["name"]}


def test_tuned_configuration_keeps_all_other_shipped_settings() -> None:
    shipped = "webhook: {port: 9443, host: ''}\nclientConnection: {qps: 50}\n"
    changed = configuration(shipped, {"webhook": {"port": 1}}, {"health": {"address": "x"}})
    assert yaml.safe_load(changed) == {
        "webhook": {"port": 1, "host": ""},
        "clientConnection": {"qps": 50},
        "health": {"address": "x"},
    }


def test_only_crds_and_webhooks_of_a_peers_manifest_are_installed() -> None:
    service = {"name": "peer", "namespace": "system", "path": "/mutate"}
    documents: list[dict[str, Any] | None] = [
        {"kind": "CustomResourceDefinition", "metadata": {"name": "jobs.example"}},
        {"kind": "Deployment", "metadata": {"name": "peer"}},
        None,
        {
            "kind": "MutatingWebhookConfiguration",
            "webhooks": [{"clientConfig": {"service": service}, "failurePolicy": "Fail"}],
        },
    ]
    crd, webhooks = to_install(documents, "peer-system", 9443)
    assert crd["kind"] == "CustomResourceDefinition"
    (webhook,) = webhooks["webhooks"]
    assert webhook["failurePolicy"] == "Fail"
    assert webhook["clientConfig"]["service"] == {
        "name": "peer",
        "namespace": "peer-system",
        "path": "/mutate",
        "port": 9443,
    }


def comparison(ours: list[float], first: list[float], second: list[float]) -> Comparison:
    """A comparison with one slow peer as shipped and two tuned ones."""
    runs = {"DDPJob": ours, "slow": [100.0] * len(ours), "first": first, "second": second}
    return Comparison(
        1000,
        tuned=("first", "second"),
        runs={name: [Run(created=one) for one in times] for name, times in runs.items()},
    )


def test_ratio_is_the_median_against_the_fastest_tuned_peer_of_each_repeat() -> None:
    found = comparison([4.0, 4.0, 4.0], [8.0, 5.0, 10.0], [6.0, 16.0, 4.0])
    assert found.ratio() == pytest.approx(0.8)


@pytest.mark.parametrize(("ours", "missed"), [(8.5, False), (8.6, True)])
def test_ratio_above_the_goal_misses_it(ours: float, missed: bool) -> None:
    figures = of_peers(comparison([ours], [10.0], [20.0]))
    assert [one.name for one in figures if one.missed] == (
        ["last pod created, as a multiple of the fastest tuned peer"] if missed else []
    )
    assert len(figures) == 4 * 4 + 1


@pytest.mark.parametrize(
    ("tool_set", "version"),
    [
        (gobuild.TRAINING_OPERATOR, "v1.9.4"),
        (gobuild.TRAINER, "v2.3.0"),
        (gobuild.JOBSET, "v0.12.0"),
    ],
)
def test_go_modules_pin_the_versions_of_the_peer_operators(
    tool_set: gobuild.ToolSet, version: str
) -> None:
    assert tool_set.version == version
