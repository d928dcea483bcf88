"""Tests of the roles that the chart creates for the operator and for users."""

import json
from typing import Any

import pytest

from ddp_operator.api.finished import CONFIG_MAP
from tests.chart.rights import Right, granted_rights, used_rights
from tests.chart.test_chart import ELECTION, find_one, rendered
from tests.harness.install import OPERATOR_USER, RELEASE, ROOT, SYSTEM_NAMESPACE

pytestmark = pytest.mark.api

JSON = dict[str, Any]
ROLES = {"Role", "ClusterRole"}
BINDINGS = {"RoleBinding", "ClusterRoleBinding"}
NODES = "ddp-trainer-nodes"
AGGREGATE = "rbac.authorization.k8s.io/aggregate-to-"


def placed(documents: list[JSON], kinds: set[str]) -> set[tuple[str, str, str | None]]:
    """Return kind, name and namespace of all documents of these kinds."""
    return {
        (d["kind"], d["metadata"]["name"], d["metadata"].get("namespace"))
        for d in documents
        if d["kind"] in kinds
    }


def test_operator_has_cluster_roles_for_all_namespaces_and_for_nodes() -> None:
    documents = rendered("--set", "rbac.userRoles=false")
    election = ("Role", ELECTION, "ddp-system")
    names = ("ddp-trainer", NODES)
    assert placed(documents, ROLES) == {election, *(("ClusterRole", n, None) for n in names)}
    assert placed(documents, BINDINGS) == {
        ("RoleBinding", ELECTION, "ddp-system"),
        *(("ClusterRoleBinding", name, None) for name in names),
    }


@pytest.mark.parametrize(
    ("flags", "watched"),
    [
        ((), True),
        (("--set", "operator.watchNodes=false"), False),
        (("--set", "operator.watchNodes=null"), True),
        (("--set", "operator.watchNamespaces={team}"), False),
        (("--set", "operator.watchNamespaces={team},operator.watchNodes=true"), True),
        (("--set", "operator.watchNamespaces={team},operator.watchNodes=false"), False),
    ],
)
def test_one_value_enables_node_watching_and_its_permission(
    flags: tuple[str, ...], watched: bool
) -> None:
    documents = rendered(*flags)
    container = find_one(documents, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    setting = {"name": "DDP_OPERATOR_WATCH_NODES", "value": str(watched).lower()}
    assert setting in container["env"]
    rights = granted_rights(documents, SYSTEM_NAMESPACE, RELEASE)
    expected = {Right("", "nodes", verb) for verb in ("list", "watch")} if watched else set()
    assert {right for right in rights if right.resource == "nodes"} == expected
    roles = {("ClusterRole", NODES, None)} if watched else set()
    assert {one for one in placed(documents, ROLES) if one[1] == NODES} == roles


@pytest.mark.parametrize("namespaces", [["team"], ["team-a", "team-b"]])
def test_operator_has_a_role_in_each_namespace_and_no_cluster_role(namespaces: list[str]) -> None:
    listed = ",".join(namespaces)
    documents = rendered(
        "--set", f"operator.watchNamespaces={{{listed}}}", "--set", "rbac.userRoles=false"
    )
    expected = {("Role", "ddp-trainer", one) for one in namespaces}
    assert placed(documents, ROLES) == expected | {("Role", ELECTION, "ddp-system")}
    bindings = {(f"{kind}Binding", name, place) for kind, name, place in expected}
    assert placed(documents, BINDINGS) == bindings | {("RoleBinding", ELECTION, "ddp-system")}
    assert rules_of(documents, "Role") == rules_of(rendered(), "ClusterRole")
    container = find_one(documents, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    assert {"name": "DDP_OPERATOR_NAMESPACES", "value": listed} in container["env"]


def rules_of(documents: list[JSON], kind: str) -> list[JSON]:
    """Return the rules of the operator's role, which are the same in each namespace."""
    found = [d for d in documents if d["kind"] == kind and d["metadata"]["name"] == "ddp-trainer"]
    assert all(one["rules"] == found[0]["rules"] for one in found)
    rules: list[JSON] = found[0]["rules"]
    return rules


def test_no_role_has_wildcards_secrets_or_exec_and_nodes_are_only_read() -> None:
    documents = rendered()
    found = [rule for d in documents if d["kind"] in ROLES for rule in d["rules"]]
    nodes = [rule for rule in found if "nodes" in rule["resources"]]
    assert nodes == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]}]
    names = {name for rule in found for key in rule for name in rule[key]}
    assert "*" not in names
    assert not names & {"secrets", "nodes/proxy", "pods/exec", "serviceaccounts", "impersonate"}
    assert not names & {"bind", "escalate", "deletecollection"}
    assert len(found) >= 10


def test_operator_has_no_right_to_config_maps_without_lists_of_finished_jobs() -> None:
    found = granted_rights(rendered("--set", "finishedJobs=false"), SYSTEM_NAMESPACE, RELEASE)
    assert not {right for right in found if right.resource == "configmaps"}


def test_roles_of_the_operator_can_be_left_to_the_administrator() -> None:
    documents = rendered("--set", "rbac.create=false")
    assert placed(documents, BINDINGS) == set()
    assert placed(documents, ROLES) == {
        ("ClusterRole", "ddpjob-editor", None),
        ("ClusterRole", "ddpjob-viewer", None),
    }


def test_user_roles_have_their_verbs() -> None:
    documents = rendered()
    read = ["get", "list", "watch"]
    jobs = {"apiGroups": ["ddp-trainer.dev"], "resources": ["ddpjobs"]}
    logs = {"apiGroups": [""], "resources": ["pods/log", "events"], "verbs": read}
    maps = {"apiGroups": [""], "resources": ["configmaps"]}
    finished = {**maps, "resourceNames": [CONFIG_MAP], "verbs": ["get", "list"]}
    assert find_one(documents, "ClusterRole", "ddpjob-viewer")["rules"] == [
        {**jobs, "verbs": read},
        logs,
        finished,
    ]
    assert find_one(documents, "ClusterRole", "ddpjob-editor")["rules"] == [
        {**jobs, "verbs": [*read, "create", "update", "patch", "delete"]},
        {**logs, "resources": ["pods", *logs["resources"]]},
        finished,
        {**jobs, "resources": ["ddpjobs/scale"], "verbs": ["get", "update", "patch"]},
        {**maps, "verbs": ["create"]},
    ]


@pytest.mark.parametrize(
    ("flags", "viewer", "editor"),
    [
        ((), set(), set()),
        (
            ("--set", "rbac.aggregateClusterRoles=true"),
            {"view", "edit", "admin"},
            {"edit", "admin"},
        ),
    ],
    ids=["default", "aggregated"],
)
def test_user_roles_are_aggregated_to_the_default_roles_if_enabled(
    flags: tuple[str, ...], viewer: set[str], editor: set[str]
) -> None:
    documents = rendered(*flags)
    for name, expected in (("ddpjob-viewer", viewer), ("ddpjob-editor", editor)):
        labels = find_one(documents, "ClusterRole", name)["metadata"]["labels"]
        found = {k.removeprefix(AGGREGATE) for k, v in labels.items() if k.startswith(AGGREGATE)}
        assert found == expected


RECORD = ROOT / "tests" / "cluster" / "recorded" / "operator-requests.jsonl"
"""Requests of the operator to a real API server, one of each kind, without deletions and Leases."""
LEASES = ("coordination.k8s.io", "leases")


def test_rights_in_an_audit_log_are_compared_with_those_of_the_chart() -> None:
    entries = [json.loads(line) for line in RECORD.read_text(encoding="utf-8").splitlines()]
    used = used_rights(entries, OPERATOR_USER)
    assert len(used) == 15
    assert Right("ddp-trainer.dev", "ddpjobs/status", "update") in used
    assert used_rights(entries, "system:admin") == set()
    granted = granted_rights(rendered(), SYSTEM_NAMESPACE, RELEASE)
    assert used <= granted
    ends = {Right("", "pods", "delete"), Right("ddp-trainer.dev", "ddpjobs", "delete")}
    leases = {Right(*LEASES, verb) for verb in ("create", "get", "update")}
    nodes = {Right("", "nodes", verb) for verb in ("list", "watch")}
    assert ends | leases | nodes <= granted - used
    assert granted_rights(rendered(), SYSTEM_NAMESPACE, "other") == set()
