"""Placement of pods: the terms of each field, beside those of the podTemplate."""

from dataclasses import replace
from typing import Any

import pytest

from ddp_operator.api.pod_policy import PodTemplatePolicy, forbidden_field
from ddp_operator.builders.affinity import NODES, OTHER_PODS, PODS, PREFERRED, REQUIRED
from ddp_operator.builders.pod import build_pod
from tests.operator.api.placement_cases import PLACED
from tests.operator.builders.test_affinity import against, strikes
from tests.operator.support import DEFAULTS, UID, new_job, with_status

OF_THE_JOB = {"labelSelector": {"matchLabels": {"ddp-trainer.dev/job-uid": UID}}}
PACKED = {**OF_THE_JOB, "topologyKey": "example.com/rack"}
ALONE = {
    "labelSelector": {
        "matchExpressions": [{"key": "ddp-trainer.dev/job-uid", "operator": "Exists"}]
    },
    "namespaceSelector": {},
    "topologyKey": "kubernetes.io/hostname",
}


def required_label(key: str, value: str) -> dict[str, Any]:
    expression = {"key": key, "operator": "In", "values": [value]}
    return {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}


def affinity(**spec: Any) -> Any:
    return build_pod(new_job(**spec), 0, 1, DEFAULTS)["spec"].get("affinity")


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, None),
        ({"exclusiveNodes": False}, None),
        (
            {"topology": {"key": "example.com/rack", "mode": "Required"}},
            {PODS: {REQUIRED: [PACKED]}},
        ),
        (
            {"topology": {"key": "example.com/rack"}},
            {PODS: {PREFERRED: [{"weight": 100, "podAffinityTerm": PACKED}]}},
        ),
        ({"exclusiveNodes": True}, {OTHER_PODS: {REQUIRED: [ALONE]}}),
        (
            {"gpusPerNode": 8, "gpuProduct": "NVIDIA-L4"},
            {NODES: required_label("nvidia.com/gpu.product", "NVIDIA-L4")},
        ),
    ],
    ids=["nothing", "shared nodes", "required", "preferred", "exclusive", "GPU product"],
)
def test_each_placement_field_adds_its_affinity_term(spec: dict[str, Any], expected: Any) -> None:
    assert affinity(**spec) == expected


@pytest.mark.parametrize(("mode", "skew"), [("Required", 1), ("Preferred", 1000)])
def test_preferred_topology_outweighs_the_preference_for_nodes_with_few_pods(
    mode: str, skew: int
) -> None:
    job = new_job(topology={"key": "example.com/rack", "mode": mode})
    spread = {**OF_THE_JOB, "topologyKey": "kubernetes.io/hostname", "maxSkew": skew}
    found = build_pod(job, 0, 1, DEFAULTS)["spec"]["topologySpreadConstraints"]
    assert found == [{**spread, "whenUnsatisfiable": "ScheduleAnyway"}]


def test_terms_of_all_placement_fields_and_strikes_and_pod_template_combine() -> None:
    own = {"podAffinityTerm": {"topologyKey": "zone"}, "weight": 1}
    template = {"spec": {"affinity": {PODS: {PREFERRED: [own]}, OTHER_PODS: {REQUIRED: [own]}}}}
    job = new_job(
        podTemplate=template,
        exclusiveNodes=True,
        topology={"key": "example.com/rack", "mode": "Required"},
        gpusPerNode=1,
        gpuProduct="NVIDIA-L4",
    )
    job = with_status(job, strikes=strikes(bad=2))
    found = build_pod(job, 0, 1, DEFAULTS)["spec"]["affinity"]
    label = required_label("nvidia.com/gpu.product", "NVIDIA-L4")
    assert found == {
        NODES: {**label, PREFERRED: [against("bad")]},
        PODS: {PREFERRED: [own], REQUIRED: [PACKED]},
        OTHER_PODS: {REQUIRED: [own, ALONE]},
    }


def test_pod_template_cannot_remove_labels_that_affinity_terms_select() -> None:
    labels = {"ddp-trainer.dev/job-uid": "other"}
    template = {"metadata": {"labels": labels}}
    job = new_job(exclusiveNodes=True, podTemplate=template)
    pod = build_pod(job, 0, 1, DEFAULTS)
    assert pod["metadata"]["labels"]["ddp-trainer.dev/job-uid"] == UID


def test_installation_can_set_the_node_label_of_gpu_products() -> None:
    defaults = replace(DEFAULTS, gpu_product_label="cloud.google.com/gke-accelerator")
    job = new_job(gpusPerNode=1, gpuProduct="nvidia-l4")
    found = build_pod(job, 0, 1, defaults)["spec"]["affinity"]
    assert found == {NODES: required_label("cloud.google.com/gke-accelerator", "nvidia-l4")}


@pytest.mark.parametrize("spec", PLACED.values(), ids=PLACED.keys())
@pytest.mark.parametrize("policy", [PodTemplatePolicy.OFF, PodTemplatePolicy.SCHEDULING])
def test_placement_fields_are_allowed_by_every_pod_template_policy(
    policy: PodTemplatePolicy, spec: dict[str, Any]
) -> None:
    """Placement fields give no privilege: a job could also state a nodeSelector or a variable."""
    assert forbidden_field(new_job(**spec).spec, policy) is None
    overlay = {"spec": {"hostNetwork": True}}
    assert forbidden_field(new_job(**spec, podTemplate=overlay).spec, policy) is not None
