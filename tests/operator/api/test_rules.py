"""Tests of the rules between fields."""

import subprocess
from typing import Any

import pytest

from ddp_operator.api.job import InvalidJobError, parse_job
from ddp_operator.api.rules import (
    MAX_NAME_LENGTH,
    NAME_RULE_MESSAGE,
    SPEC_RULES,
)
from ddp_operator.api.sizes import LONGEST_VARIABLE
from ddp_operator.api.spec import RESERVED_POD_FIELDS
from tests.operator.schema_tools import server_accepts
from tests.operator.support import job_manifest, new_job

TASK = "my_package.flowers:build"

ONE_NODE = {"size": "1Gi", "accessModes": ["ReadWriteOnce"]}
GPU_PRODUCT_FORM = (
    "spec.gpuProduct: must be the value of a label, with - for each space, for example"
    " NVIDIA-H100-80GB-HBM3"
)
BROKEN: dict[str, dict[str, Any]] = {
    "spec: task and command must not both be set": {
        "task": TASK,
        "command": ["python", "a.py"],
    },
    "spec: one of task and command must be set": {},
    "spec.config: may be set only with task; a command takes args": {
        "command": ["a"],
        "config": {"x": 1},
    },
    "spec.args: may be set only with command; a task takes config": {"task": TASK, "args": ["--x"]},
    "spec.env: names must not begin with DDP_, because ddp-trainer reserves this prefix": {
        "task": TASK,
        "env": [{"name": "FINE"}, {"name": "DDP_ATTEMPT", "value": "9"}],
    },
    "spec.volumes: names must not begin with ddp-, because ddp-trainer reserves this prefix": {
        "task": TASK,
        "volumes": [{"name": "ddp-tmp", "emptyDir": {}}],
    },
    "spec.volumeMounts: each name must be the name of one of spec.volumes": {
        "task": TASK,
        "volumes": [{"name": "data", "emptyDir": {}}],
        "volumeMounts": [{"name": "dat", "mountPath": "/data"}],
    },
    "spec.restartWindowSeconds: requires spec.maxRestarts of at most 30": {
        "task": TASK,
        "restartWindowSeconds": 3600,
        "maxRestarts": 31,
    },
    "spec.elastic.minNodes: must be at most spec.nodes": {
        "task": TASK,
        "nodes": 2,
        "elastic": {"minNodes": 3},
    },
    "spec.spares: nodes and spares must be at most 9999 together": {
        "task": TASK,
        "nodes": 9999,
        "spares": 1,
    },
    "spec.sparePriorityClassName: may be set only with spares or elastic": {
        "task": TASK,
        "sparePriorityClassName": "low",
    },
    **{
        f"spec.podTemplate.spec.{field}: must not be set, because the operator sets it": {
            "task": TASK,
            "podTemplate": {"spec": {field: "Always", "hostIPC": False}},
        }
        for field in RESERVED_POD_FIELDS
    },
    "spec.init: each step must set either task or command": {
        "task": TASK,
        "init": [{"name": "fetch"}],
    },
    "spec.init: args may be set only with command; a task takes config": {
        "task": TASK,
        "init": [{"name": "fetch", "task": "data:fetch", "args": ["a"]}],
    },
    "spec.init: names in env must not begin with DDP_, because ddp-trainer reserves this prefix": {
        "task": TASK,
        "init": [{"name": "fetch", "task": "data:fetch", "env": [{"name": "DDP_INIT_TRY"}]}],
    },
    "spec.init: each step must have another name": {
        "task": TASK,
        "init": [{"name": "fetch", "task": "a:b"}, {"name": "fetch", "task": "a:c"}],
    },
    "spec.checkpoint: one of claimName and claimTemplate must be set": {
        "task": TASK,
        "checkpoint": {"claimName": "shared", "claimTemplate": {"size": "1Gi"}},
    },
    (
        "spec.checkpoint.claimTemplate.accessModes: must contain ReadWriteMany, because all pods of"
        " the job mount the claim; one pod, or topology.key kubernetes.io/hostname, needs only"
        " ReadWriteOnce"
    ): {"task": TASK, "nodes": 2, "checkpoint": {"claimTemplate": ONE_NODE}},
    "spec.topology.key: must be the key of a label, for example topology.kubernetes.io/zone": {
        "task": TASK,
        "topology": {"key": "my rack"},
    },
    GPU_PRODUCT_FORM: {"task": TASK, "gpusPerNode": 8, "gpuProduct": "NVIDIA H100 80GB HBM3"},
    "spec.gpuProduct: requires spec.gpusPerNode of at least 1": {
        "task": TASK,
        "gpuProduct": "NVIDIA-L4",
    },
    (
        "spec.topology.key: must not be kubernetes.io/hostname with spec.exclusiveNodes, because"
        " one packs all pods onto one Kubernetes node and the other allows one pod on each"
    ): {
        "task": TASK,
        "exclusiveNodes": True,
        "topology": {"key": "kubernetes.io/hostname"},
    },
    (
        "spec.network.rdma: must not be set with the profile Ethernet or GcpTcpx, because NCCL uses"
        " no RDMA device with it"
    ): {
        "task": TASK,
        "network": {"profile": "Ethernet", "rdma": {"resource": "rdma/a"}},
    },
    (
        "spec.gang.queue: may be set only with type Volcano or Kueue, because other types have"
        " no queues"
    ): {
        "task": TASK,
        "gang": {"type": "Native", "queue": "research"},
    },
    "spec.gang.queue: must have at most 63 characters with type Kueue, because it is a label": {
        "task": TASK,
        "gang": {"type": "Kueue", "queue": "a" * 64},
    },
    **{
        f"spec.podTemplate.metadata.{kind}[{key}]: must not be set with spec.gang, which sets the"
        " group of the pods": {
            "task": TASK,
            "gang": {"type": gang},
            "podTemplate": {"metadata": {kind: {key: "mine"}}},
        }
        for kind, key, gang in (
            ("annotations", "scheduling.k8s.io/group-name", "Volcano"),
            ("annotations", "kueue.x-k8s.io/pod-group-name", "Native"),
            ("labels", "kueue.x-k8s.io/pod-group-name", "Coscheduling"),
            ("labels", "kueue.x-k8s.io/queue-name", "Kueue"),
            ("labels", "scheduling.x-k8s.io/pod-group", "Coscheduling"),
        )
    },
}


def error_of(manifest: dict[str, Any]) -> str:
    with pytest.raises(InvalidJobError) as caught:
        parse_job(manifest)
    return str(caught.value)


@pytest.mark.parametrize(("message", "spec"), BROKEN.items(), ids=BROKEN.keys())
def test_spec_that_breaks_a_rule_is_rejected_with_its_message(
    message: str, spec: dict[str, Any]
) -> None:
    assert error_of({**job_manifest(), "spec": spec}) == message


def test_test_table_has_a_spec_that_breaks_each_rule() -> None:
    assert [rule.message for rule in SPEC_RULES] == list(BROKEN)


@pytest.mark.parametrize(
    "spec",
    [
        {"task": TASK, "config": {"epochs": 1}},
        {"command": ["python", "a.py"], "args": ["--x"]},
        {"task": TASK, "env": [{"name": "MY_DDP_VALUE", "value": "1"}]},
        {
            "task": TASK,
            "volumes": [{"name": "data", "emptyDir": {}}, {"name": "unused", "emptyDir": {}}],
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        },
        {"task": TASK, "restartWindowSeconds": 60, "maxRestarts": 30},
        {"task": TASK, "restartWindowSeconds": 60},
        {"task": TASK, "maxRestarts": 31},
        {"task": TASK, "checkpoint": {"claimTemplate": ONE_NODE}},
        {
            "task": TASK,
            "spares": 1,
            "checkpoint": {"claimTemplate": ONE_NODE},
            "topology": {"key": "kubernetes.io/hostname", "mode": "Required"},
        },
        {"task": TASK, "topology": {"key": "kubernetes.io/hostname", "mode": "Required"}},
        {"task": TASK, "exclusiveNodes": True, "topology": {"key": "rack", "mode": "Required"}},
        {"task": TASK, "gpusPerNode": 1, "gpuProduct": "NVIDIA-L4"},
        {"task": TASK, "network": {"profile": "RoCE", "rdma": {"resource": "rdma/a"}}},
    ],
    ids=[
        "task with config",
        "command with args",
        "prefix inside a name",
        "volume without mount",
        "window with 30 restarts",
        "window with the default restarts",
        "31 restarts without a window",
        "claim of one pod",
        "claim of pods on one Kubernetes node",
        "all pods on one Kubernetes node",
        "exclusive nodes of one rack",
        "GPU product of a job with GPUs",
        "RDMA devices with a profile that uses them",
    ],
)
def test_job_that_breaks_no_rule_is_accepted(spec: dict[str, Any]) -> None:
    assert new_job(**spec).spec.nodes == 1


LABEL_WORDS = {
    "a": True,
    "A-1_b.c": True,
    "x" * 63: True,
    "x" * 64: False,
    "-a": False,
    "a-": False,
    "a b": False,
    "a\n": False,
    "ä": False,
}
"""Texts, with whether each is a valid label name and a valid label value."""
LABEL_KEYS = LABEL_WORDS | {
    "example.com/rack": True,
    "a/b": True,
    "A/b": False,
    "/b": False,
    "a/": False,
    "a..b/c": False,
    "a/b/c": False,
}


@pytest.mark.parametrize(("key", "valid"), LABEL_KEYS.items())
def test_topology_key_must_be_a_label_key(key: str, valid: bool) -> None:
    manifest = job_manifest(topology={"key": key})
    if valid:
        assert parse_job(manifest).spec.topology is not None
    else:
        assert error_of(manifest).startswith("spec.topology.key: must be the key of a label")


@pytest.mark.parametrize(("product", "valid"), LABEL_WORDS.items())
def test_gpu_product_must_be_a_label_value(product: str, valid: bool) -> None:
    manifest = job_manifest(gpusPerNode=1, gpuProduct=product)
    if valid:
        assert parse_job(manifest).spec.gpu_product == product
    else:
        assert error_of(manifest).startswith("spec.gpuProduct: ")


@pytest.mark.parametrize("manager", ["multikueue", "a.b/", "A.b/c", "a.b/c d", "", "a.b/c\n"])
def test_managed_by_without_a_domain_or_a_name_is_refused(manager: str) -> None:
    manifest = job_manifest(managedBy=manager)
    assert error_of(manifest).startswith("spec.managedBy: ")
    assert not server_accepts("spec", manifest["spec"])


@pytest.mark.parametrize(
    "name",
    ["a", "digits", "d-1", "a" * MAX_NAME_LENGTH],
)
def test_job_name_that_leaves_room_for_pod_numbers_is_accepted(name: str) -> None:
    assert new_job(name).metadata.name == name


@pytest.mark.parametrize(
    "name",
    ["a" * (MAX_NAME_LENGTH + 1), "1digits", "Digits", "di.gits", "digits-", "-digits", "digits\n"],
    ids=["too long", "digit first", "upper case", "dot", "dash last", "dash first", "line break"],
)
def test_job_name_that_cannot_name_pods_is_rejected_with_the_reason(name: str) -> None:
    error = error_of(job_manifest(name))
    assert error == f"{NAME_RULE_MESSAGE}, got {name!r}"


def test_longest_pod_name_is_a_dns_label_of_63_characters() -> None:
    assert MAX_NAME_LENGTH + len("-9998") == 63


LONG = "x" * 4096


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (
            {"task": TASK, "config": {"task": {"names": "x" * 140_000}}},
            (
                "spec.config: must have at most 131,060 bytes, because Linux starts no program with"
                " a longer environment variable, got 140,021"
            ),
        ),
        (
            {"command": ["python"], "args": [LONG] * 32},
            (
                "spec: command and args: must have at most 131,059 bytes, because Linux starts no"
                " program with a longer environment variable, got 131,210"
            ),
        ),
        (
            {"task": TASK, "env": [{"name": "TEXT", "value": "\U0001f600" * 32_766}]},
            None,
        ),
        (
            {"task": TASK, "env": [{"name": "TEXT", "value": "\U0001f600" * 32_768}]},
            (
                "spec.env: TEXT: must have at most 131,066 bytes, because Linux starts no program"
                " with a longer environment variable, got 131,072"
            ),
        ),
        (
            {
                "task": TASK,
                "podTemplate": {
                    "spec": {
                        "containers": [
                            {"name": "worker", "env": [{"name": 1}, {"name": "A", "value": "x"}]},
                            {"name": "b", "env": [{"name": "TEXT", "value": "x" * 131_067}]},
                        ]
                    }
                },
            },
            (
                "spec.podTemplate.spec.containers: TEXT: must have at most 131,066 bytes, because"
                " Linux starts no program with a longer environment variable, got 131,067"
            ),
        ),
    ],
    ids=["config", "args", "longest variable", "variable", "overlay"],
)
def test_environment_value_too_long_to_start_a_program_is_refused(
    spec: dict[str, Any], sentence: str | None
) -> None:
    manifest = job_manifest(**spec)
    if sentence is None:
        assert parse_job(manifest).spec.env is not None
    else:
        assert error_of(manifest) == sentence


def test_longest_environment_variable_is_the_limit_of_linux() -> None:
    def start(size: int) -> None:
        env = {"A": "x" * (size - len("A="))}
        subprocess.run(["/bin/true"], env=env, check=True)

    start(LONGEST_VARIABLE)
    with pytest.raises(OSError, match="too long"):
        start(LONGEST_VARIABLE + 1)


@pytest.mark.parametrize("name", ["../../x", "/abs", "a/b", "..", "A", "a_b", "a b", ""])
@pytest.mark.parametrize(
    "field", ["checkpoint", "volume", "mount", "pull secret", "priority class"]
)
def test_reference_that_is_no_kubernetes_name_is_refused(field: str, name: str) -> None:
    volumes = [{"name": "data", "emptyDir": {}}]
    specs: dict[str, dict[str, Any]] = {
        "checkpoint": {"checkpoint": {"claimName": name}},
        "volume": {"volumes": [{"name": name, "emptyDir": {}}]},
        "mount": {"volumes": volumes, "volumeMounts": [{"name": name, "mountPath": "/a"}]},
        "pull secret": {"imagePullSecrets": [name]},
        "priority class": {"priorityClassName": name},
    }
    manifest = job_manifest(**specs[field])
    assert error_of(manifest).startswith("spec.")
    assert not server_accepts("spec", manifest["spec"])
