"""Tests that `ddpjob run` and the API server accept the same specs."""

from typing import Any

import pytest
from pydantic import ValidationError

from ddp_operator.api.spec import DDPJobSpec
from tests.operator.schema_tools import server_accepts, server_findings

TASK = {"task": "my_package.flowers:build"}
VOLUME = {"name": "data", "emptyDir": {}}

ACCEPTED: dict[str, dict[str, Any]] = {
    "the smallest spec": {**TASK},
    "a command with arguments": {"command": ["python", "/app/train.py"], "args": ["--lr=0.1"]},
    "the largest sizes": {**TASK, "nodes": 9999, "procsPerNode": 8, "gpusPerNode": 8},
    "zero GPUs": {**TASK, "gpusPerNode": 0},
    "nested configuration": {**TASK, "config": {"a": {"b": [1, 2.5, None, "x", True]}}},
    "an empty configuration": {**TASK, "config": {}},
    "an environment variable": {**TASK, "env": [{"name": "LR", "value": "0.1"}]},
    "a variable from a secret": {
        **TASK,
        "env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
    },
    "quantities": {
        **TASK,
        "resources": {"requests": {"cpu": "500m", "memory": "2Gi"}, "limits": {"cpu": 4}},
    },
    "a fractional quantity": {**TASK, "resources": {"limits": {"cpu": "0.5"}}},
    "a volume and its mount": {
        **TASK,
        "volumes": [VOLUME],
        "volumeMounts": [{"name": "data", "mountPath": "/data", "readOnly": True}],
    },
    "a checkpoint": {**TASK, "checkpoint": {"claimName": "c", "path": "runs/a-1", "keep": 1}},
    "init steps": {
        **TASK,
        "init": [
            {"name": "fetch", "image": "a", "command": ["b"], "args": ["c"], "maxRetries": 0},
            {"name": "convert", "task": "data:convert", "resources": {"limits": {"cpu": 1}}},
        ],
    },
    "a claim template": {
        **TASK,
        "checkpoint": {
            "claimTemplate": {"size": 1, "storageClassName": "", "whenDeleted": "Delete"}
        },
    },
    "a checkpoint by steps": {**TASK, "checkpoint": {"claimName": "c", "everySteps": 100}},
    "a network": {**TASK, "network": {"interface": "eth0", "ncclDebug": "Info"}},
    "RDMA devices": {**TASK, "network": {"rdma": {"resource": "rdma/hca", "count": 8}}},
    "shared memory": {**TASK, "sharedMemory": "16Gi"},
    "an excluded interface": {**TASK, "network": {"interface": "^docker0,lo"}},
    "an overlay": {
        **TASK,
        "podTemplate": {"metadata": {"labels": {"q": "a"}}, "spec": {"hostIPC": True}},
    },
    "tolerations": {**TASK, "tolerations": [{"operator": "Exists"}]},
    "restarts, deadlines and suspend": {
        **TASK,
        "suspend": True,
        "maxRestarts": 0,
        "restartWindowSeconds": 3600,
        "maxInfrastructureRestarts": 0,
        "startupDeadlineSeconds": 1,
        "activeDeadlineSeconds": 31_536_000,
        "ttlSecondsAfterFinished": 0,
        "cleanPodPolicy": "All",
    },
    "image and placement": {
        **TASK,
        "nodeSelector": {"pool": "gpu"},
        "priorityClassName": "high",
        "imagePullSecrets": ["registry"],
        "imagePullPolicy": "Never",
        "image": "registry.example/mine:1",
    },
    "a task of a single module": {"task": "flowers:build"},
    "this operator as the controller": {**TASK, "managedBy": "ddp-trainer.dev/operator"},
    "another controller": {**TASK, "managedBy": "kueue.x-k8s.io/multikueue"},
    "a topology": {**TASK, "topology": {"key": "example.com/rack"}},
    "a required topology": {**TASK, "topology": {"key": "rack", "mode": "Required"}},
    "exclusive nodes": {**TASK, "exclusiveNodes": True},
    "a GPU product": {**TASK, "gpusPerNode": 1, "gpuProduct": "NVIDIA-H100-80GB-HBM3"},
    "a network profile": {**TASK, "network": {"profile": "AwsEfa"}},
}

REJECTED: dict[str, dict[str, Any]] = {
    "no nodes": {**TASK, "nodes": 0},
    "too many nodes": {**TASK, "nodes": 10_000},
    "nodes as text": {**TASK, "nodes": "2"},
    "nodes as a fraction": {**TASK, "nodes": 2.5},
    "nodes as a boolean": {**TASK, "nodes": True},
    "suspend as text": {**TASK, "suspend": "yes"},
    "suspend as a number": {**TASK, "suspend": 1},
    "an unknown field": {**TASK, "nods": 2},
    "an unknown nested field": {**TASK, "checkpoint": {"claimName": "c", "everyStep": 1}},
    "a field by its Python name": {**TASK, "max_restarts": 1},
    "a task without a function": {"task": "my_package.flowers"},
    "a task with a dash": {"task": "my-package:build"},
    "a task with a letter that is not ASCII": {"task": "blümen:build"},
    "a task that ends with a line break": {"task": "flowers:build\n"},
    "an empty command": {"command": []},
    "a command as text": {"command": "python train.py"},
    "a command of numbers": {"command": ["python", 3]},
    "a configuration that is a list": {**TASK, "config": [1]},
    "a variable without a name": {**TASK, "env": [{"value": "1"}]},
    "a variable with a wrong name": {**TASK, "env": [{"name": "1A", "value": "1"}]},
    "a variable with a number": {**TASK, "env": [{"name": "A", "value": 1}]},
    "variables as an object": {**TASK, "env": {"A": "1"}},
    "a quantity that is a word": {**TASK, "resources": {"limits": {"cpu": "lots"}}},
    "a quantity with a wrong unit": {**TASK, "resources": {"requests": {"memory": "2GB"}}},
    "a quantity as a fraction": {**TASK, "resources": {"limits": {"cpu": 0.5}}},
    "a quantity as a boolean": {**TASK, "resources": {"limits": {"cpu": True}}},
    "an unknown pull policy": {**TASK, "imagePullPolicy": "Sometimes"},
    "an unknown clean-up policy": {**TASK, "cleanPodPolicy": "Running"},
    "an unknown debug level": {**TASK, "network": {"ncclDebug": "INFO"}},
    "an RDMA resource without a domain": {**TASK, "network": {"rdma": {"resource": "hca"}}},
    "no RDMA device": {**TASK, "network": {"rdma": {"resource": "rdma/hca", "count": 0}}},
    "shared memory of no size": {**TASK, "sharedMemory": "much"},
    "an interface with a space": {**TASK, "network": {"interface": "eth 0"}},
    "a mount at a relative path": {
        **TASK,
        "volumes": [VOLUME],
        "volumeMounts": [{"name": "data", "mountPath": "data"}],
    },
    "a volume with a wrong name": {**TASK, "volumes": [{"name": "Data", "emptyDir": {}}]},
    "a volume of an unknown kind": {**TASK, "volumes": [{"name": "d", "hostPath": {}}]},
    "no init steps": {**TASK, "init": []},
    "an init step without a name": {**TASK, "init": [{"command": ["a"]}]},
    "an init step with a wrong name": {**TASK, "init": [{"name": "A b", "command": ["a"]}]},
    "a claim template without a size": {**TASK, "checkpoint": {"claimTemplate": {}}},
    "a claim that nobody can write": {
        **TASK,
        "checkpoint": {"claimTemplate": {"size": "1Gi", "accessModes": ["ReadOnlyMany"]}},
    },
    "a claim without access modes": {
        **TASK,
        "checkpoint": {"claimTemplate": {"size": "1Gi", "accessModes": []}},
    },
    "a checkpoint path with leading dots": {
        **TASK,
        "checkpoint": {"claimName": "c", "path": "../x"},
    },
    "a checkpoint path with dots in the middle": {
        **TASK,
        "checkpoint": {"claimName": "c", "path": "a/../../x"},
    },
    "an absolute checkpoint path": {**TASK, "checkpoint": {"claimName": "c", "path": "/x"}},
    "zero checkpoints to keep": {**TASK, "checkpoint": {"claimName": "c", "keep": 0}},
    "a negative number of restarts": {**TASK, "maxRestarts": -1},
    "a negative number of infrastructure restarts": {**TASK, "maxInfrastructureRestarts": -1},
    "a restart window of zero seconds": {**TASK, "restartWindowSeconds": 0},
    "a deadline of zero seconds": {**TASK, "activeDeadlineSeconds": 0},
    "a negative time to live": {**TASK, "ttlSecondsAfterFinished": -1},
    "a label value that is too long": {**TASK, "nodeSelector": {"a": "x" * 64}},
    "a label value that is a number": {**TASK, "podTemplate": {"metadata": {"labels": {"a": 1}}}},
    "an overlay of the pod status": {**TASK, "podTemplate": {"status": {}}},
    "a toleration as text": {**TASK, "tolerations": ["Exists"]},
    "a controller without a domain": {**TASK, "managedBy": "multikueue"},
    "a controller without a name": {**TASK, "managedBy": "example.com/"},
    "a controller with a long name": {**TASK, "managedBy": f"example.com/{'x' * 52}"},
    "a topology without a key": {**TASK, "topology": {"mode": "Required"}},
    "an empty topology key": {**TASK, "topology": {"key": ""}},
    "an unknown topology mode": {**TASK, "topology": {"key": "rack", "mode": "required"}},
    "exclusive nodes as text": {**TASK, "exclusiveNodes": "true"},
    "a long GPU product": {**TASK, "gpusPerNode": 1, "gpuProduct": "x" * 64},
    "an unknown network profile": {**TASK, "network": {"profile": "infiniband"}},
}


def model_accepts(spec: dict[str, Any]) -> bool:
    try:
        DDPJobSpec.model_validate(spec)
    except ValidationError:
        return False
    return True


@pytest.mark.parametrize("spec", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_api_server_and_model_accept_the_spec(spec: dict[str, Any]) -> None:
    assert server_findings("spec", spec) == []
    assert model_accepts(spec)


@pytest.mark.parametrize("spec", REJECTED.values(), ids=REJECTED.keys())
def test_api_server_rejects_the_spec(spec: dict[str, Any]) -> None:
    assert not server_accepts("spec", spec)


@pytest.mark.parametrize("spec", REJECTED.values(), ids=REJECTED.keys())
def test_model_rejects_the_spec_too(spec: dict[str, Any]) -> None:
    assert not model_accepts(spec)
