"""The generated CustomResourceDefinition is structural, small, documented and up to date."""

import json
from pathlib import Path
from typing import Any

import pytest

from ddp_operator.api.crd import COLUMNS, build_crd, to_yaml
from ddp_operator.api.reference import build_reference
from ddp_operator.api.rules import SPEC_RULES
from ddp_operator.api.spec import DDPJobSpec
from ddp_operator.api.status import ConditionType
from tests.operator.schema_tools import part, root_schema, version, walk

ROOT = Path(__file__).parents[3]
MANIFEST = ROOT / "manifests" / "crd" / "ddpjobs.yaml"
REFERENCE = ROOT / "docs" / "reference" / "api.md"

NODES = [pytest.param(schema, id=path) for path, schema in walk(root_schema(), "$")]


@pytest.mark.parametrize("schema", NODES)
def test_every_node_of_the_schema_is_structural(schema: dict[str, Any]) -> None:
    assert not {"$ref", "$defs", "title", "oneOf", "allOf"} & schema.keys()
    assert schema.get("additionalProperties") is not False
    assert not {"properties", "additionalProperties"} <= schema.keys()
    if schema.get("x-kubernetes-int-or-string"):
        assert schema["anyOf"] == [{"type": "integer"}, {"type": "string"}]
        assert "type" not in schema
    else:
        assert "anyOf" not in schema
        assert schema["type"] in {"object", "array", "string", "integer", "boolean"}


LISTS = [(path, node) for path, node in walk(root_schema(), "$") if node.get("type") == "array"]


@pytest.mark.parametrize("schema", [n for _, n in LISTS], ids=[path for path, _ in LISTS])
def test_every_list_is_bounded_so_that_rules_have_a_bounded_cost(schema: dict[str, Any]) -> None:
    assert 0 < schema["maxItems"] <= 256


def test_no_default_is_null_because_the_api_server_refuses_that() -> None:
    defaults = {path: node["default"] for path, node in walk(root_schema()) if "default" in node}
    assert None not in defaults.values()


def test_the_crd_is_under_100_kilobytes() -> None:
    assert len(json.dumps(build_crd()).encode()) < 100_000
    assert len(to_yaml(build_crd()).encode()) < 100_000


@pytest.mark.parametrize("name", ["spec", "status"])
def test_every_property_has_a_description_that_is_a_sentence(name: str) -> None:
    silent = [
        f"{path}.{field}"
        for path, node in walk(part(name), name)
        for field, schema in node.get("properties", {}).items()
        if not schema.get("description", "").rstrip("`").endswith(".")
        or not schema["description"][0].isupper()
    ]
    assert silent == []
    assert part(name)["description"]


def test_a_free_object_keeps_fields_that_the_schema_does_not_know() -> None:
    config = part("spec")["properties"]["config"]
    assert config["type"] == "object"
    assert config["x-kubernetes-preserve-unknown-fields"] is True


def test_defaults_stand_in_the_schema_so_that_kubectl_shows_them() -> None:
    stated = {k: v["default"] for k, v in part("spec")["properties"].items() if "default" in v}
    assert stated == {
        "nodes": 1,
        "gpusPerNode": 0,
        "suspend": False,
        "maxRestarts": 3,
        "maxInfrastructureRestarts": 50,
        "cleanPodPolicy": "None",
    }
    assert part("spec")["properties"]["checkpoint"]["properties"]["keep"]["default"] == 3


def test_the_schema_has_every_field_of_the_spec_by_its_camel_case_name() -> None:
    aliases = {field.alias for field in DDPJobSpec.model_fields.values()}
    assert part("spec")["properties"].keys() == aliases


def test_lists_of_named_things_merge_by_name() -> None:
    for path, keys in {"env": ["name"], "volumes": ["name"]}.items():
        schema = part("spec")["properties"][path]
        assert schema["x-kubernetes-list-type"] == "map"
        assert schema["x-kubernetes-list-map-keys"] == keys
    status = part("status")["properties"]
    assert status["conditions"]["x-kubernetes-list-map-keys"] == ["type"]
    assert status["strikes"]["x-kubernetes-list-map-keys"] == ["node"]


def test_every_rule_is_enforced_by_the_api_server_with_its_sentence() -> None:
    sent = part("spec")["x-kubernetes-validations"]
    assert [(r["rule"], r["message"]) for r in sent] == [(r.cel, r.message) for r in SPEC_RULES]
    assert "metadata.name" in root_schema()["x-kubernetes-validations"][0]["rule"]


def test_status_and_scale_are_subresources() -> None:
    assert version()["subresources"] == {
        "status": {},
        "scale": {
            "specReplicasPath": ".spec.nodes",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        },
    }


def test_the_columns_are_those_that_people_look_for() -> None:
    shown = version()["additionalPrinterColumns"]
    narrow = [c["name"] for c in shown if c.get("priority", 0) == 0]
    wide = [c["name"] for c in shown if c.get("priority", 0) == 1]
    assert narrow == ["Status", "Ready", "Attempt", "Progress", "Loss", "Age"]
    assert wide == ["Throughput", "ETA", "Checkpoint", "Message"]


@pytest.mark.parametrize("column", COLUMNS, ids=lambda c: str(c["name"]))
def test_every_column_reads_a_field_that_exists_and_is_of_its_type(column: dict[str, Any]) -> None:
    path = column["jsonPath"]
    if path == ".metadata.creationTimestamp":
        assert column["type"] == "date"
        return
    before, found, field = path.partition("[?(@.type==")
    schema = root_schema()
    for name in before.strip(".").split("."):
        schema = schema["properties"][name]
    if found:
        kind, _, last = field.partition(")].")
        assert kind.strip('"') in list(ConditionType)
        schema = schema["items"]["properties"][last]
    assert schema["type"] == column["type"]


def test_the_manifest_in_the_repository_is_the_generated_one() -> None:
    fresh = to_yaml(build_crd())
    assert MANIFEST.read_text(encoding="utf-8") == fresh, (
        "write it anew: python -m ddp_operator.api.crd manifests/crd/ddpjobs.yaml"
    )


def test_the_reference_in_the_repository_is_the_generated_one() -> None:
    assert REFERENCE.read_text(encoding="utf-8") == build_reference()
