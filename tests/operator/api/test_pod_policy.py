"""Tests of the podTemplate policies in the operator. tests/api sends the same cases to a server."""

from typing import Any

import pytest

from ddp_operator.api.job import InvalidJobError
from ddp_operator.api.pod_policy import PodTemplatePolicy, forbidden_field
from tests.operator.api.pod_policy_cases import ALLOWED, ELSEWHERE, REFUSED, pod
from tests.operator.support import new_job

FULL, SCHEDULING, OFF = PodTemplatePolicy.FULL, PodTemplatePolicy.SCHEDULING, PodTemplatePolicy.OFF


def sentence(spec: dict[str, Any], policy: PodTemplatePolicy) -> str | None:
    return forbidden_field(new_job(**spec).spec, policy)


@pytest.mark.parametrize(("spec", "field"), REFUSED.values(), ids=REFUSED.keys())
def test_field_that_needs_the_policy_full_is_named(spec: dict[str, Any], field: str) -> None:
    found = sentence(spec, SCHEDULING) or ""
    assert found.startswith(f"spec.podTemplate.spec.{field}: must ")
    assert found.endswith(", because the podTemplate policy of this installation is scheduling")
    assert sentence(spec, FULL) is None


@pytest.mark.parametrize(("spec", "begin"), ELSEWHERE.values(), ids=ELSEWHERE.keys())
def test_field_outside_of_the_pod_spec_is_named(spec: dict[str, Any], begin: str) -> None:
    assert (sentence(spec, SCHEDULING) or "").startswith(begin)
    assert sentence(spec, FULL) is None


@pytest.mark.parametrize("spec", ALLOWED.values(), ids=ALLOWED.keys())
def test_policy_scheduling_allows_placement_and_unprivileged_containers(
    spec: dict[str, Any],
) -> None:
    assert sentence(spec, SCHEDULING) is None
    if "podTemplate" in spec:
        assert (sentence(spec, OFF) or "").startswith("spec.podTemplate: must not be set, because")
    else:
        assert sentence(spec, OFF) is None


def test_policy_off_refuses_system_priority_classes() -> None:
    spec = {"priorityClassName": "system-node-critical"}
    assert (sentence(spec, OFF) or "").startswith("spec.priorityClassName: must not begin with")


@pytest.mark.parametrize(
    ("spec", "begin"),
    [
        (pod(containers={}), "spec.podTemplate.spec.containers: must be a list of objects"),
        (pod(containers=[1]), "spec.podTemplate.spec.containers: must be a list of objects"),
        (
            pod(containers=[{"name": "a", "ports": 1}]),
            "spec.podTemplate.spec.ports: must be a list of objects",
        ),
        (
            pod(containers=[{"name": "a", "securityContext": None}]),
            "spec.podTemplate.spec.containers.securityContext: must be an object",
        ),
        (pod(priorityClassName=1), "spec.podTemplate.spec.priorityClassName: must be a string"),
    ],
)
def test_pod_template_field_of_a_wrong_type_is_refused(spec: dict[str, Any], begin: str) -> None:
    assert sentence(spec, SCHEDULING) == begin


def test_volumes_of_a_job_have_no_source_on_the_host() -> None:
    with pytest.raises(InvalidJobError, match=r"spec\.volumes\.0\.hostPath: unknown field"):
        new_job(volumes=[{"name": "root", "hostPath": {"path": "/"}}])


def test_annotations_that_a_job_may_set_are_those_of_the_installation() -> None:
    spec = new_job(podTemplate={"metadata": {"annotations": {"a.example/b": "c"}}}).spec
    assert forbidden_field(spec, SCHEDULING, ["a.example/b"]) is None
    assert forbidden_field(spec, SCHEDULING, ["a.example/*"]) is None
    for other in ([], ["a.example/"], ["a.example/bb", "b"]):
        assert (forbidden_field(spec, SCHEDULING, other) or "").startswith(
            "spec.podTemplate.metadata.annotations[a.example/b]: must be one of"
        )
