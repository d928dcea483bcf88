"""Generate the CustomResourceDefinition from the pydantic models.

The API server requires a structural schema, and pydantic's JSON schema is not structural.
Therefore this module removes references, titles, null branches and `additionalProperties: false`,
and it adds the Kubernetes extensions.
"""

import json
import sys
from pathlib import Path
from typing import Any

import yaml

from ddp_operator.api.base import API_GROUP, API_VERSION_NAME, KIND, PLURAL
from ddp_operator.api.rules import (
    CLAIM_RULE_CEL,
    CLAIM_RULE_MESSAGE,
    MANAGED_BY_RULE_CEL,
    MANAGED_BY_RULE_MESSAGE,
    NAME_RULE_CEL,
    NAME_RULE_MESSAGE,
    SPEC_RULES,
)
from ddp_operator.api.spec import DDPJobSpec
from ddp_operator.api.status import DDPJobStatus

Schema = dict[str, Any]

_REMOVED_KEYS = {"title", "$defs", "additionalProperties"}


def structural_schema(model: type[DDPJobSpec | DDPJobStatus]) -> Schema:
    """Return the structural OpenAPI v3 schema of a model."""
    schema = model.model_json_schema(by_alias=True, mode="validation")
    return _convert(schema, schema.get("$defs", {}))


def _convert(node: Schema, definitions: dict[str, Schema]) -> Schema:
    if "$ref" in node:
        target = definitions[node["$ref"].rsplit("/", 1)[1]]
        siblings = {k: v for k, v in node.items() if k != "$ref"}
        node = {**target, **siblings}
    if "anyOf" in node:
        node = _resolve_any_of(node, definitions)
    out = {k: v for k, v in node.items() if k not in _REMOVED_KEYS}
    if out.get("default", ...) is None:
        del out["default"]
    default, text = out.get("default"), out.get("description", "")
    if isinstance(default, str | int | bool) and "default is" not in text:
        # `kubectl explain` shows no other trace of a default.
        out["description"] = f"{text} The default is {json.dumps(default)}."
    if out.get("x-kubernetes-preserve-unknown-fields"):
        return {k: v for k, v in out.items() if k != "default"} | {"type": "object"}
    if "properties" in out:
        out["properties"] = {k: _convert(v, definitions) for k, v in out["properties"].items()}
    values = node.get("additionalProperties")
    if isinstance(values, dict):
        out["additionalProperties"] = _convert(values, definitions)
    if "items" in out:
        out["items"] = _convert(out["items"], definitions)
    return out


def _resolve_any_of(node: Schema, definitions: dict[str, Schema]) -> Schema:
    """Replace `anyOf` by one schema.

    A null branch marks an optional field. Branches for int and str become int-or-string.
    """
    branches = [b for b in node["anyOf"] if b.get("type") != "null"]
    rest = {k: v for k, v in node.items() if k != "anyOf"}
    if rest.get("x-kubernetes-int-or-string"):
        return {**rest, "anyOf": [{"type": "integer"}, {"type": "string"}]}
    if len(branches) != 1:
        raise ValueError(f"anyOf must have exactly one branch that is not null, got {node}")
    return _convert({**branches[0], **rest}, definitions)


def _column(name: str, path: str, kind: str, text: str, *, wide: bool = False) -> Schema:
    column: Schema = {"name": name, "type": kind, "jsonPath": path, "description": text}
    return {**column, "priority": 1} if wide else column


def _succeeded_condition(field: str) -> str:
    return f'.status.conditions[?(@.type=="Succeeded")].{field}'


PRINTER_COLUMNS: tuple[Schema, ...] = (
    _column("Status", _succeeded_condition("reason"), "string", "Current state of the job."),
    _column(
        "Ready", ".status.ready", "string", "Pods in training, out of all pods of the job: 2/2."
    ),
    _column("Attempt", ".status.attempt", "integer", "Number of the current attempt, from 1."),
    _column(
        "Progress",
        ".status.progress.summary",
        "string",
        "Completed updates, out of all updates of the run: 60/120 (50%).",
    ),
    _column("Loss", ".status.progress.loss", "string", "Newest training loss."),
    _column("Age", ".metadata.creationTimestamp", "date", "Time since the job was created."),
    _column(
        "Throughput",
        ".status.progress.samplesPerSecond",
        "integer",
        "Samples per second, over all ranks.",
        wide=True,
    ),
    _column(
        "ETA",
        ".status.progress.etaSeconds",
        "integer",
        "Estimated seconds until the end of the run.",
        wide=True,
    ),
    _column(
        "Checkpoint",
        ".status.lastCheckpoint.step",
        "integer",
        "Completed updates in the newest committed checkpoint.",
        wide=True,
    ),
    _column(
        "Goodput",
        ".status.goodput.percent",
        "string",
        "Share of the time, without suspension, in which the job trained: 97.3%.",
        wide=True,
    ),
    _column(
        "Message",
        _succeeded_condition("message"),
        "string",
        "Reason for the current state, as a sentence.",
    ),
)


def build_crd() -> dict[str, Any]:
    """Return the CustomResourceDefinition of DDPJob."""
    spec = structural_schema(DDPJobSpec)
    spec["x-kubernetes-validations"] = [
        *({"rule": rule.cel, "message": rule.message} for rule in SPEC_RULES),
        {"rule": MANAGED_BY_RULE_CEL, "message": MANAGED_BY_RULE_MESSAGE},
        {"rule": CLAIM_RULE_CEL, "message": CLAIM_RULE_MESSAGE},
    ]
    schema = {
        "type": "object",
        "description": "A multi-node PyTorch DDP training run.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": structural_schema(DDPJobStatus),
        },
        "x-kubernetes-validations": [{"rule": NAME_RULE_CEL, "message": NAME_RULE_MESSAGE}],
    }
    version = {
        "name": API_VERSION_NAME,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.nodes",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "additionalPrinterColumns": list(PRINTER_COLUMNS),
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{API_GROUP}"},
        "spec": {
            "group": API_GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": ["ddpj"],
                "categories": ["training"],
            },
            "versions": [version],
        },
    }


def to_yaml(document: dict[str, Any]) -> str:
    """Return the document as YAML, with its keys in their given order."""
    return yaml.safe_dump(document, sort_keys=False, width=100, allow_unicode=True)


def main() -> None:
    """Write the CRD to the file that the first command-line argument names."""
    Path(sys.argv[1]).write_text(to_yaml(build_crd()), encoding="utf-8")


if __name__ == "__main__":
    main()
