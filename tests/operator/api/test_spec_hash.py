"""Tests of the spec hash: only fields that shape the pods change it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_operator.api.spec import DDPJobSpec, pod_shaping
from ddp_operator.api.status import StrikeStatus
from tests.operator.schema_tools import part
from tests.operator.support import NOW, new_job, with_status

SPEC: dict[str, Any] = {
    "nodes": 2,
    "task": "my_package.flowers:build",
    "config": {"epochs": 3},
    "image": "registry.example/mine:1",
    "checkpoint": {"claimName": "shared"},
    "volumes": [{"name": "data", "emptyDir": {}}],
    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
}


def hash_of(**changes: Any) -> str:
    return new_job(**(SPEC | changes)).spec_hash


def with_server_defaults(value: Any, schema: dict[str, Any]) -> Any:
    """Return the value with the defaults that the API server fills in."""
    if isinstance(value, dict) and "properties" in schema:
        filled = dict(value)
        for name, inner in schema["properties"].items():
            if name not in filled and "default" in inner:
                filled[name] = inner["default"]
            if name in filled:
                filled[name] = with_server_defaults(filled[name], inner)
        return filled
    if isinstance(value, list) and "items" in schema:
        return [with_server_defaults(item, schema["items"]) for item in value]
    return value


def test_defaults_of_the_api_server_do_not_change_the_spec_hash() -> None:
    stored = with_server_defaults(SPEC, part("spec"))
    assert stored["maxRestarts"] == 3
    assert stored["checkpoint"]["keep"] == 3
    assert stored["volumeMounts"][0]["readOnly"] is False
    assert new_job(**stored).spec_hash == hash_of()


LIFECYCLE: dict[str, Any] = {
    "managedBy": "ddp-trainer.dev/operator",
    "suspend": True,
    "maxRestarts": 9,
    "restartWindowSeconds": 60,
    "maxInfrastructureRestarts": 9,
    "startupDeadlineSeconds": 60,
    "activeDeadlineSeconds": 60,
    "ttlSecondsAfterFinished": 60,
    "cleanPodPolicy": "All",
}

SHAPING: dict[str, Any] = {
    "nodes": 3,
    "elastic": {"minNodes": 1},
    "spares": 1,
    "sparePriorityClassName": "low",
    "procsPerNode": 2,
    "gpusPerNode": 1,
    "task": "my_package.trees:build",
    "config": {"epochs": 4},
    "command": ["python", "a.py"],
    "args": ["--lr=1"],
    "image": "registry.example/mine:2",
    "imagePullPolicy": "Always",
    "imagePullSecrets": ["registry"],
    "env": [{"name": "A", "value": "1"}],
    "resources": {"limits": {"cpu": "1"}},
    "sharedMemory": "16Gi",
    "volumes": [{"name": "other", "emptyDir": {}}],
    "volumeMounts": [{"name": "data", "mountPath": "/data", "readOnly": True}],
    "init": [{"name": "fetch", "task": "data:fetch"}],
    "podTemplate": {"spec": {"hostIPC": True}},
    "nodeSelector": {"pool": "gpu"},
    "tolerations": [{"operator": "Exists"}],
    "topology": {"key": "rack"},
    "gpuProduct": "NVIDIA-L4",
    "exclusiveNodes": True,
    "priorityClassName": "high",
    "gang": {"type": "Native"},
    "network": {"interface": "eth0"},
    "checkpoint": {"claimName": "shared", "everySteps": 5, "startOver": True},
    "hang": {"stepSeconds": 60},
    "standby": False,
}


def shape_of(**changes: Any) -> dict[str, Any]:
    return pod_shaping(DDPJobSpec.model_validate(SPEC | changes))


@pytest.mark.parametrize(("field", "value"), LIFECYCLE.items(), ids=LIFECYCLE.keys())
def test_change_of_a_lifecycle_field_does_not_restart_pods(field: str, value: Any) -> None:
    assert shape_of(**{field: value}) == shape_of()
    assert hash_of(**{field: value}) == hash_of()


@pytest.mark.parametrize(("field", "value"), SHAPING.items(), ids=SHAPING.keys())
def test_change_of_a_pod_shaping_field_restarts_pods(field: str, value: Any) -> None:
    assert shape_of(**{field: value}) != shape_of()


@pytest.mark.parametrize(
    "change", [{"nodes": 3}, {"elastic": {"minNodes": 2}}, {"elastic": {"growAfterSeconds": 9}}]
)
def test_change_of_an_elastic_jobs_size_does_not_restart_pods(change: dict[str, Any]) -> None:
    elastic = {"elastic": {"minNodes": 1}}
    given = elastic | change
    given["elastic"] = {"minNodes": 1} | given["elastic"]
    assert shape_of(**given) == shape_of(**elastic)


def test_change_of_the_number_of_spares_does_not_restart_pods() -> None:
    assert shape_of(spares=1) == shape_of(spares=3)


def test_new_strikes_against_kubernetes_nodes_do_not_restart_pods() -> None:
    job = new_job(**SPEC)
    strike = StrikeStatus(node="machine-1", count=2, last_time=NOW)
    assert with_status(job, strikes=[strike]).spec_hash == job.spec_hash


def test_every_spec_field_is_tested_as_restarting_or_not_restarting_pods() -> None:
    fields = {str(field.alias) for field in DDPJobSpec.model_fields.values()}
    assert LIFECYCLE.keys() | SHAPING.keys() == fields


def test_different_pod_specs_have_different_hashes() -> None:
    hashes = {hash_of(), hash_of(nodes=3), hash_of(image="b"), hash_of(config={"epochs": 4})}
    assert len(hashes) == 4


@given(st.permutations(sorted(SPEC)))
def test_order_of_fields_does_not_change_the_spec_hash(order: list[str]) -> None:
    assert new_job(**{name: SPEC[name] for name in order}).spec_hash == hash_of()


def test_spec_hash_has_16_hexadecimal_digits() -> None:
    assert len(hash_of()) == 16
    assert set(hash_of()) <= set("0123456789abcdef")
