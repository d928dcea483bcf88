"""Tests of the chart's values about gang schedulers: settings, rights and admission policy."""

import re
from typing import Any

import pytest

from ddp_operator.api.gang import GangType
from ddp_operator.builders.gangs.versions import BUILT_VERSIONS, KNOWN_VERSIONS, row_of
from ddp_operator.builders.kinds import KINDS
from tests.chart.rights import Right, granted_rights
from tests.chart.test_chart import find_one, rendered

pytestmark = pytest.mark.api

JSON = dict[str, Any]
POLICY = "ddp-trainer-operator"


def rights(*flags: str) -> set[Right]:
    return granted_rights(rendered(*flags), "ddp-system", "ddp-trainer")


def rows(*types: GangType) -> set[Right]:
    """Return the rights to the group objects of some gang schedulers, by the table of kinds."""
    versions = [v for one in types for v in KNOWN_VERSIONS[one] if v in BUILT_VERSIONS]
    kinds = [KINDS[row_of(version)] for version in versions]
    return {Right(kind.group, kind.plural, verb) for kind in kinds for verb in kind.verbs}


@pytest.mark.parametrize(
    "types",
    [
        [GangType.NATIVE],
        [GangType.COSCHEDULING],
        [GangType.VOLCANO],
        [GangType.NATIVE, GangType.VOLCANO],
    ],
)
def test_operator_gets_rights_to_the_groups_of_the_enabled_types_alone(
    types: list[GangType],
) -> None:
    listed = ",".join(types)
    assert rights("--set", f"gangs.types={{{listed}}}") - rights() == rows(*types)


def test_operator_has_no_right_to_groups_by_default() -> None:
    assert not rights() & rows(*KNOWN_VERSIONS)
    assert not any("kueue" in right.group for right in rights())


def test_operator_only_reads_and_deletes_the_workloads_of_kueue() -> None:
    more = rights("--set", "gangs.types={Kueue}") - rights()
    assert more == {Right("kueue.x-k8s.io", "workloads", verb) for verb in ("get", "delete")}


def validations(*flags: str) -> str:
    """Return all rules about what the operator may write."""
    spec = find_one(rendered(*flags), "ValidatingAdmissionPolicy", POLICY)["spec"]
    return " ".join(str(one["expression"]) for one in spec["validations"])


def test_policy_of_the_operator_accepts_the_marks_of_kueue_only_with_kueue() -> None:
    marks = ("kueue.x-k8s.io/managed", "kueue.x-k8s.io/retriable-in-group")
    assert all(mark in validations("--set", "gangs.types={Kueue}") for mark in marks)
    assert not any(mark in validations("--set", "gangs.types={Volcano}") for mark in marks)


def test_gang_values_become_settings_of_the_operator() -> None:
    flags = "gangs.types={Volcano},gangs.default=Volcano,gangs.queue=research"
    documents = rendered("--set", f"{flags},gangs.coschedulingScheduler=batch")
    container = find_one(documents, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    given = {one["name"]: one.get("value") for one in container["env"]}
    assert given["DDP_OPERATOR_GANG_TYPES"] == "Volcano"
    assert given["DDP_OPERATOR_GANG_DEFAULT"] == "Volcano"
    assert given["DDP_OPERATOR_GANG_QUEUE"] == "research"
    assert given["DDP_OPERATOR_COSCHEDULING_SCHEDULER"] == "batch"
    plain = find_one(rendered(), "Deployment")["spec"]["template"]["spec"]["containers"][0]
    assert not [one for one in plain["env"] if "GANG" in one["name"]]


def children(*flags: str) -> str:
    """Return the rule on which objects the operator may write."""
    spec = find_one(rendered(*flags), "ValidatingAdmissionPolicy", POLICY)["spec"]
    return next(str(one["expression"]) for one in spec["variables"] if one["name"] == "child")


def test_operator_policy_allows_groups_of_the_enabled_gang_types_only() -> None:
    assert "podgroups" not in children()
    assert "'scheduling.volcano.sh/podgroups'" in children("--set", "gangs.types={Volcano}")
    native = children("--set", "gangs.types={Native}")
    assert "'scheduling.k8s.io/workloads', 'scheduling.k8s.io/podgroups'" in native
    assert "volcano" not in native


def test_policy_of_the_operator_allows_the_finalizer_of_kubernetes_1_37_alone() -> None:
    """The API server adds it to each PodGroup before it evaluates policies."""
    (policy,) = (
        one
        for one in rendered("--set", "gangs.types={Native}")
        if one["kind"] == "ValidatingAdmissionPolicy" and one["metadata"]["name"] == POLICY
    )
    allowed = [
        found
        for rule in policy["spec"]["validations"]
        for found in re.findall(
            r"finalizers\.orValue\(\[\]\)\.all\(f,(.*?)\)\)", rule["expression"]
        )
    ]
    resource, finalizer = "scheduling.k8s.io/podgroups", "scheduling.k8s.io/podgroup-protection"
    [of_gangs] = [one.split() for one in allowed if "scheduling" in one]
    assert of_gangs == [
        "(variables.resource",
        "==",
        f"'{resource}'",
        "&&",
        "f",
        "==",
        f"'{finalizer}'",
    ]
