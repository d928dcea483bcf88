"""Check the objects of a YAML text without a cluster."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from jsonschema import Draft7Validator
from kubernetes import client

from ddp_operator.api.base import KIND
from ddp_operator.api.job import InvalidJobError
from ddp_operator.api.spec import DDPJobSpec
from ddp_operator.client.manifest import JobFile
from tests.docs.pages import ROOT

BUILT_IN = {
    ("apps/v1", "Deployment"): client.V1Deployment,
    ("autoscaling/v2", "HorizontalPodAutoscaler"): client.V2HorizontalPodAutoscaler,
    ("batch/v1", "Job"): client.V1Job,
    ("v1", "ConfigMap"): client.V1ConfigMap,
    ("v1", "LimitRange"): client.V1LimitRange,
    ("v1", "Namespace"): client.V1Namespace,
    ("v1", "PersistentVolumeClaim"): client.V1PersistentVolumeClaim,
    ("v1", "Pod"): client.V1Pod,
    ("v1", "ResourceQuota"): client.V1ResourceQuota,
    ("v1", "Secret"): client.V1Secret,
    ("v1", "Service"): client.V1Service,
}
"""Models of the kinds of Kubernetes that pages and samples have."""
UNCHECKED = {
    ("argoproj.io/v1alpha1", "Application"),
    ("kueue.x-k8s.io/v1beta2", "ClusterQueue"),
    ("kueue.x-k8s.io/v1beta2", "LocalQueue"),
    ("kueue.x-k8s.io/v1beta2", "ResourceFlavor"),
    ("kustomize.toolkit.fluxcd.io/v1", "Kustomization"),
    ("source.toolkit.fluxcd.io/v1", "GitRepository"),
}
"""Kinds of other projects, of which only the name is checked."""
OTHER_FILES = {
    "Chart.yaml and values.yaml": {"dependencies", "ddp-trainer"},
    "kustomization.yaml": {"resources", "images", "patches"},
    "argocd-cm": {"resource.customizations.health.ddp-trainer.dev_DDPJob"},
}
"""Keys of files that hold no object."""
_VALUES = json.loads((ROOT / "charts" / "values.schema.json").read_text(encoding="utf-8"))
"""Schema of the values of the chart."""
_SPEC = {str(field.alias or name) for name, field in DDPJobSpec.model_fields.items()}


def problems(text: str) -> list[str]:
    """Return what is wrong with the objects of a text, which may be a part of a DDPJob."""
    try:
        objects = [one for one in yaml.safe_load_all(text) if one is not None]
    except yaml.YAMLError as error:
        return [str(error)]
    if not objects or not all(isinstance(one, dict) for one in objects):
        return ["it holds no object"]
    if any(_is_job(one) for one in objects):
        return [*_job_problems(objects), *_others(objects)]
    return _others(objects)


def _others(objects: list[dict[str, Any]]) -> list[str]:
    return [found for one in objects if not _is_job(one) for found in _problems(one)]


def _is_job(one: Mapping[str, Any]) -> bool:
    return one.get("kind") == KIND


def _job_problems(objects: list[Any]) -> list[str]:
    """Return what is wrong with the DDPJob among the objects, with its settings of the loop."""
    try:
        JobFile("job", objects).checked()
    except InvalidJobError as error:
        return [str(error)]
    return []


def _problems(one: dict[str, Any]) -> list[str]:
    kind = (one.get("apiVersion"), one.get("kind"))
    if kind in BUILT_IN:
        nameless = [] if one.get("metadata", {}).get("name") else ["metadata.name is missing"]
        return [*nameless, *_unknown_fields(BUILT_IN[kind].__name__, one, str(kind[1]))]
    if kind == (None, None):
        return _part_problems(one)
    return [] if kind in UNCHECKED else [f"no test knows the kind {kind}"]


def _part_problems(one: dict[str, Any]) -> list[str]:
    """Return what is wrong with a part of a DDPJob: its spec, or fields of the spec."""
    spec = one["spec"] if set(one) == {"spec"} else one
    if set(spec) <= _SPEC:
        whole = {"nodes": 2, "task": "ddp_trainer.tasks.miniresnet:build", **spec}
        if "command" in spec:
            del whole["task"]
        job = {"apiVersion": "ddp-trainer.dev/v1alpha1", "kind": KIND, "spec": whole}
        return _job_problems([{**job, "metadata": {"name": "part"}}])
    if set(one) <= set(_VALUES["properties"]):
        found = Draft7Validator(_VALUES).iter_errors(one)
        return [f"value of the chart: {error.message}" for error in found]
    known = any(set(one) <= keys for keys in OTHER_FILES.values())
    return [] if known else [f"not fields of a DDPJob: {', '.join(sorted(set(spec) - _SPEC))}"]


def _unknown_fields(model: str, value: Any, path: str) -> Iterator[str]:
    """Yield the fields that a model of Kubernetes' client does not have."""
    if model.startswith("List["):
        for number, item in enumerate(value if isinstance(value, list) else []):
            yield from _unknown_fields(model[5:-1], item, f"{path}[{number}]")
        return
    kind = getattr(client, model, None)
    if kind is None or not hasattr(kind, "attribute_map") or not isinstance(value, dict):
        return
    models = {name: kind.openapi_types[field] for field, name in kind.attribute_map.items()}
    for name, inner in value.items():
        if name not in models:
            yield f"{path}.{name}: unknown field"
        else:
            yield from _unknown_fields(models[name], inner, f"{path}.{name}")
