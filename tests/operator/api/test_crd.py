"""Tests that the generated CRD is structural, small, documented and up to date."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ddp_operator.api.crd import PRINTER_COLUMNS, build_crd, to_yaml
from ddp_operator.api.reference import build_reference
from ddp_operator.api.rules import (
    CLAIM_RULE_CEL,
    CLAIM_RULE_MESSAGE,
    MANAGED_BY_RULE_CEL,
    MANAGED_BY_RULE_MESSAGE,
    SPEC_RULES,
)
from ddp_operator.api.spec import DDPJobSpec
from ddp_operator.api.status import ConditionType
from tests.operator.schema_tools import part, root_schema, version, walk

ROOT = Path(__file__).parents[3]
MANIFEST = ROOT / "manifests" / "crd" / "ddpjobs.yaml"
REFERENCE = ROOT / "docs" / "reference" / "api.md"

NODES = [pytest.param(schema, id=path) for path, schema in walk(root_schema(), "$")]


@pytest.mark.parametrize("schema", NODES)
def test_every_schema_node_is_structural(schema: dict[str, Any]) -> None:
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
def test_every_list_has_a_maximum_length_so_that_rules_have_a_bounded_cost(
    schema: dict[str, Any],
) -> None:
    assert 0 < schema["maxItems"] <= 256


def test_no_default_is_null_because_the_api_server_rejects_null() -> None:
    defaults = {path: node["default"] for path, node in walk(root_schema()) if "default" in node}
    assert None not in defaults.values()


def test_crd_is_smaller_than_100_kilobytes() -> None:
    assert len(json.dumps(build_crd()).encode()) < 100_000
    assert len(to_yaml(build_crd()).encode()) < 100_000


@pytest.mark.parametrize("name", ["spec", "status"])
def test_every_property_has_a_description_with_capital_and_full_stop(name: str) -> None:
    undocumented = [
        f"{path}.{field}"
        for path, node in walk(part(name), name)
        for field, schema in node.get("properties", {}).items()
        if not schema.get("description", "").rstrip("`").endswith(".")
        or not schema["description"][0].isupper()
    ]
    assert undocumented == []
    assert part(name)["description"]


MAX_FIRST_SENTENCE_WORDS = 25
FORBIDDEN_FIRST_WORDS = {"What", "Which", "Who", "Whether", "How", "That", "So"}
DESCRIBED = [
    pytest.param(schema, id=path)
    for path, schema in [
        ("$", root_schema()),
        *walk(part("spec"), "spec"),
        *walk(part("status"), "status"),
    ]
    # Map values, scalar list items and raw objects in lists are described by the field above.
    if "description" in schema or "properties" in schema or not path.endswith(("*", "[]"))
]


@pytest.mark.parametrize("schema", DESCRIBED)
def test_every_description_begins_with_a_short_plain_sentence(schema: dict[str, Any]) -> None:
    first = re.split(r"(?<=\.)\s+", schema.get("description", ""))[0]
    words = first.split()
    assert words, "no description"
    assert len(words) <= MAX_FIRST_SENTENCE_WORDS
    assert words[0] not in FORBIDDEN_FIRST_WORDS


def test_raw_object_keeps_fields_outside_the_schema() -> None:
    config = part("spec")["properties"]["config"]
    assert config["type"] == "object"
    assert config["x-kubernetes-preserve-unknown-fields"] is True


def test_schema_contains_the_defaults_of_the_spec() -> None:
    defaults = {k: v["default"] for k, v in part("spec")["properties"].items() if "default" in v}
    assert defaults == {
        "nodes": 1,
        "spares": 0,
        "gpusPerNode": 0,
        "exclusiveNodes": False,
        "suspend": False,
        "maxRestarts": 3,
        "maxInfrastructureRestarts": 50,
        "cleanPodPolicy": "None",
    }
    assert part("spec")["properties"]["checkpoint"]["properties"]["keep"]["default"] == 3


def test_schema_has_every_spec_field_under_its_camel_case_name() -> None:
    aliases = {field.alias for field in DDPJobSpec.model_fields.values()}
    assert part("spec")["properties"].keys() == aliases


def test_lists_of_named_items_merge_by_name() -> None:
    for path, keys in {"env": ["name"], "volumes": ["name"]}.items():
        schema = part("spec")["properties"][path]
        assert schema["x-kubernetes-list-type"] == "map"
        assert schema["x-kubernetes-list-map-keys"] == keys
    status = part("status")["properties"]
    assert status["conditions"]["x-kubernetes-list-map-keys"] == ["type"]
    assert status["strikes"]["x-kubernetes-list-map-keys"] == ["node"]


def test_status_keeps_the_old_name_of_ordered_milliseconds() -> None:
    recovery = part("status")["properties"]["lastRecovery"]["properties"]
    assert recovery["toldMilliseconds"]["type"] == "integer"
    assert recovery["orderedMilliseconds"]["type"] == "integer"


def test_crd_contains_every_rule_with_its_message() -> None:
    validations = part("spec")["x-kubernetes-validations"]
    assert [(r["rule"], r["message"]) for r in validations] == [
        *((r.cel, r.message) for r in SPEC_RULES),
        (MANAGED_BY_RULE_CEL, MANAGED_BY_RULE_MESSAGE),
        (CLAIM_RULE_CEL, CLAIM_RULE_MESSAGE),
    ]
    assert "metadata.name" in root_schema()["x-kubernetes-validations"][0]["rule"]


def test_crd_has_the_subresources_status_and_scale() -> None:
    assert version()["subresources"] == {
        "status": {},
        "scale": {
            "specReplicasPath": ".spec.nodes",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        },
    }


def test_kubectl_get_shows_seven_columns_and_four_more_with_wide_output() -> None:
    columns = version()["additionalPrinterColumns"]
    narrow = [c["name"] for c in columns if c.get("priority", 0) == 0]
    wide = [c["name"] for c in columns if c.get("priority", 0) == 1]
    assert narrow == ["Status", "Ready", "Attempt", "Progress", "Loss", "Age", "Message"]
    assert wide == ["Throughput", "ETA", "Checkpoint", "Goodput"]


@pytest.mark.parametrize("column", PRINTER_COLUMNS, ids=lambda c: str(c["name"]))
def test_every_printer_column_reads_an_existing_field_of_its_type(column: dict[str, Any]) -> None:
    path = column["jsonPath"]
    if path == ".metadata.creationTimestamp":
        assert column["type"] == "date"
        return
    prefix, filtered, field = path.partition("[?(@.type==")
    schema = root_schema()
    for name in prefix.strip(".").split("."):
        schema = schema["properties"][name]
    if filtered:
        kind, _, last = field.partition(")].")
        assert kind.strip('"') in list(ConditionType)
        schema = schema["items"]["properties"][last]
    assert schema["type"] == column["type"]


def test_committed_crd_equals_the_generated_one() -> None:
    generated = to_yaml(build_crd())
    assert MANIFEST.read_text(encoding="utf-8") == generated, (
        "run `make generate` to update manifests/crd/ddpjobs.yaml"
    )


def test_committed_reference_page_equals_the_generated_one() -> None:
    assert REFERENCE.read_text(encoding="utf-8") == build_reference()


def test_kubectl_explain_states_every_default() -> None:
    stated = {
        path: node["description"]
        for path, node in walk(part("spec"))
        if isinstance(node.get("default"), str | int | bool)
    }
    assert stated[".maxRestarts"].endswith(" The default is 3.")
    assert stated[".maxInfrastructureRestarts"].endswith(" The default is 50.")
    assert stated[".hang.stepSeconds"].endswith(" The default is 30.")
    assert len(stated) > 10
    assert [path for path, text in stated.items() if "default is" not in text] == []
