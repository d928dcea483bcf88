"""Tests of the ValidatingAdmissionPolicies that the chart renders. tests/api tests their effect."""

import json
from typing import Any

import pytest
import yaml

from ddp_operator.api.pod_policy import ANNOTATIONS
from ddp_operator.reconcile.host_ports import why_no_host_network
from tests.chart.test_chart import find_one, rendered, template
from tests.harness.install import ROOT
from tests.operator.support import new_job

pytestmark = pytest.mark.api

POLICY = "ValidatingAdmissionPolicy"
POD_TEMPLATE = "ddp-trainer-pod-template"
HOST_NETWORK = "ddp-trainer-host-network"


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


@pytest.mark.parametrize(("ports", "refused"), [("", True), ("20000-29999", False)])
def test_host_network_is_refused_unless_ports_are_reserved(ports: str, refused: bool) -> None:
    for policy in ("scheduling", "full"):
        documents = rendered("--set", f"podTemplate={policy},workers.hostPorts={ports}")
        for kind in (POLICY, f"{POLICY}Binding"):
            assert (HOST_NETWORK in names(documents, kind)) is refused
        container = find_one(documents, "Deployment")["spec"]["template"]["spec"]["containers"][0]
        variable = {"name": "DDP_OPERATOR_HOST_PORTS", "value": ports}
        assert (variable in container["env"]) is not refused


def test_message_about_the_host_network_is_that_of_the_operator() -> None:
    [rule] = find_one(rendered(), POLICY, HOST_NETWORK)["spec"]["validations"]
    spec = new_job(network={"hostNetwork": True}).spec
    assert rule["message"] == why_no_host_network(spec, None)


def test_admission_policies_can_be_left_out() -> None:
    documents = rendered("--set", "admissionPolicies.enabled=false")
    assert names(documents, POLICY) | names(documents, f"{POLICY}Binding") == set()


def test_operator_policy_names_its_account_and_lease_and_namespaces() -> None:
    flags = ("--set", "operator.watchNamespaces={a,b}", "--set", "serviceAccount.name=runner")
    spec = find_one(rendered(*flags), POLICY, "ddp-trainer-operator")["spec"]
    [condition] = spec["matchConditions"]
    user = "request.userInfo.username == 'system:serviceaccount:ddp-system:runner' && !("
    assert condition["expression"].startswith(user)
    assert "in ['a', 'b']" in condition["expression"]
    assert "variables." not in condition["expression"]
    rules = [validation["expression"] for validation in spec["validations"]]
    assert "in ['a', 'b']" in rules[1]
    assert not any("__" in rule for rule in [*rules, condition["expression"]])
    variables = {v["name"]: v["expression"] for v in spec["variables"]}
    assert "object.metadata.name == 'ddp-trainer-operator'" in variables["lease"]


@pytest.mark.parametrize(
    ("values", "limited"),
    [
        ("podTemplate=scheduling", True),
        ("podTemplate=off", True),
        ("podTemplate=full", False),
        ("admissionPolicies.limitPods=false", False),
    ],
)
def test_two_chart_values_let_the_operator_create_privileged_pods(
    values: str, limited: bool
) -> None:
    spec = find_one(rendered("--set", values), POLICY, "ddp-trainer-operator")["spec"]
    rules = [v for v in spec["validations"] if "may not create pods with" in v["message"]]
    assert (len(rules) > 10) is limited


def test_chart_value_pod_template_annotations_reaches_policies_and_operator() -> None:
    documents = rendered("--set", "podTemplateAnnotations={a.example/b,c.example/*}")
    for name in (POD_TEMPLATE, "ddp-trainer-operator"):
        rules = str(find_one(documents, POLICY, name)["spec"]["validations"])
        assert "dyn('a.example/b'), ])" in rules
        assert "dyn('c.example/'), ]).exists(p, k.startsWith(p))" in rules
    container = find_one(documents, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    variable = "DDP_OPERATOR_POD_TEMPLATE_ANNOTATIONS"
    assert {"name": variable, "value": "a.example/b,c.example/*"} in container["env"]
    [none] = rendered("--set", "podTemplateAnnotations=null", "-s", "templates/deployment.yaml")
    variables = none["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": variable, "value": ","} in variables


def test_chart_and_operator_have_the_same_default_annotations() -> None:
    values = yaml.safe_load((ROOT / "charts" / "values.yaml").read_text("utf-8"))
    assert tuple(values["podTemplateAnnotations"]) == ANNOTATIONS


@pytest.mark.parametrize("quote", ["a'b", 'a"b', "a b", "__USER__'"])
def test_annotation_name_cannot_end_a_string_literal_of_the_policy(quote: str) -> None:
    result = template("--set-json", f"podTemplateAnnotations={json.dumps([quote])}")
    assert result.returncode != 0
    assert "podTemplateAnnotations" in result.stderr


def test_operator_policy_skips_only_writes_that_rbac_forbids_anyway() -> None:
    documents = rendered()
    constraints = find_one(documents, POLICY, "ddp-trainer-operator")["spec"]["matchConstraints"]
    skipped = {
        (group, resource)
        for rule in constraints["excludeResourceRules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    granted = {
        (group, resource)
        for document in documents
        if document["kind"] in {"ClusterRole", "Role"}
        for rule in document["rules"]
        for group in rule.get("apiGroups", [])
        for resource in rule.get("resources", [])
    }
    assert ("", "pods") in granted
    assert ("", "pods/status") in skipped
    assert skipped.isdisjoint(granted)
    assert not any("*" in part for pair in skipped | granted for part in pair)
