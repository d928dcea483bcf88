"""Tests of the ValidatingAdmissionPolicies that the chart renders. tests/api tests their effect."""

from typing import Any

import pytest

from tests.chart.test_chart import find_one, rendered

pytestmark = pytest.mark.api

POLICY = "ValidatingAdmissionPolicy"
POD_TEMPLATE = "ddp-trainer-pod-template"


def names(documents: list[dict[str, Any]], kind: str) -> set[str]:
    return {d["metadata"]["name"] for d in documents if d["kind"] == kind}


@pytest.mark.parametrize(
    ("policy", "installed"), [("scheduling", True), ("off", True), ("full", False)]
)
def test_pod_template_policy_is_enforced_by_operator_and_api_server(
    policy: str, installed: bool
) -> None:
    documents = rendered("--set", f"podTemplate={policy}")
    assert (POD_TEMPLATE in names(documents, POLICY)) is installed
    assert (POD_TEMPLATE in names(documents, f"{POLICY}Binding")) is installed
    container = find_one(documents, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    assert {"name": "DDP_OPERATOR_POD_TEMPLATE", "value": policy} in container["env"]


def test_pod_template_policy_is_scheduling_by_default() -> None:
    assert find_one(rendered(), POLICY, POD_TEMPLATE) == find_one(
        rendered("--set", "podTemplate=scheduling"), POLICY, POD_TEMPLATE
    )


def test_admission_policies_can_be_left_out() -> None:
    documents = rendered("--set", "admissionPolicies.enabled=false")
    assert names(documents, POLICY) | names(documents, f"{POLICY}Binding") == set()
