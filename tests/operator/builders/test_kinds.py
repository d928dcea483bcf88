"""The table of kinds: which children count as intact, and the rights of the chart."""

import itertools
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from ddp_operator.api.finished import CONFIG_MAP
from ddp_operator.builders.kinds import KINDS
from ddp_operator.builders.service import build_service
from ddp_operator.cluster.kube.used_fields import keep_used_fields
from tests.operator.support import active_job

JOB = active_job()
HELPERS = Path(__file__).parents[3] / "charts" / "templates" / "_helpers.tpl"


@pytest.mark.parametrize(
    ("edit", "intact"),
    [
        ({}, True),
        ({"ipFamilies": ["IPv4"]}, True),
        ({"selector": None}, False),
        ({"selector": {"app": "other"}}, False),
        ({"publishNotReadyAddresses": False}, False),
        ({"publishNotReadyAddresses": None}, False),
    ],
)
def test_service_with_an_edited_field_is_not_intact(edit: dict[str, Any], intact: bool) -> None:
    """Addresses that appear only when a pod is ready appear too late for the rendezvous."""
    service = build_service(JOB)
    spec = {key: value for key, value in (service["spec"] | edit).items() if value is not None}
    metadata = service["metadata"] | {"uid": "s", "resourceVersion": "2"}
    found = keep_used_fields("Service", {**service, "metadata": metadata, "spec": spec})
    assert KINDS["Service"].is_intact(found, build_service(JOB)) is intact


def chart_rules() -> list[dict[str, Any]]:
    """Return the rules of the operator's role, with those that a value switches off."""
    found = re.search(
        r'define "ddp-trainer.rules" -}}\n(.*?){{- end -}}', HELPERS.read_text("utf-8"), re.DOTALL
    )
    assert found is not None
    lines = [line for line in found[1].splitlines() if not line.startswith("{{")]
    rules: list[dict[str, Any]] = yaml.safe_load("\n".join(lines))
    return rules


def test_chart_grants_exactly_the_rights_to_child_objects_that_the_code_states() -> None:
    granted = defaultdict[tuple[str, str], set[str]](set)
    for rule in chart_rules():
        for group, resource in itertools.product(rule["apiGroups"], rule["resources"]):
            granted[group, resource] |= set(rule["verbs"])
    others = {("ddp-trainer.dev", "ddpjobs"), ("ddp-trainer.dev", "ddpjobs/status"), ("", "events")}
    others.add(("kueue.x-k8s.io", "workloads"))  # Kueue creates them.
    others.add(("", "configmaps"))  # The list of finished jobs belongs to no job.
    wanted = {(kind.group, kind.plural): set(kind.verbs) for kind in KINDS.values()}
    assert granted.keys() == wanted.keys() | others
    assert {place: granted[place] for place in wanted} == wanted
    assert granted["kueue.x-k8s.io", "workloads"] == {"get", "delete"}


def test_operator_may_read_and_change_no_config_map_but_the_list_of_finished_jobs() -> None:
    rules = [rule for rule in chart_rules() if "configmaps" in rule["resources"]]
    assert [(rule.get("resourceNames"), rule["verbs"]) for rule in rules] == [
        ([CONFIG_MAP], ["get", "patch"]),
        (None, ["create"]),
    ]
