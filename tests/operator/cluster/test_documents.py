"""Merge patches that restore a child which somebody has edited."""

import copy
from typing import Any

import pytest

from ddp_operator.builders.network import build_network_policy
from ddp_operator.builders.service import build_service
from ddp_operator.cluster.documents import lost_fields
from tests.operator.support import AGENT_CLIENTS, new_job

POLICY = build_network_policy(new_job(), AGENT_CLIENTS)
SERVICE = build_service(new_job())
JSON = dict[str, Any]


def patched(target: JSON, patch: JSON) -> JSON:
    """Apply a merge patch (RFC 7386), as the API server does."""
    out = copy.deepcopy(target)
    for key, value in patch.items():
        if value is None:
            out.pop(key, None)
        elif isinstance(value, dict):
            known = out.get(key)
            out[key] = patched(known if isinstance(known, dict) else {}, value)
        else:
            out[key] = value
    return out


@pytest.mark.parametrize("manifest", [POLICY, SERVICE], ids=["NetworkPolicy", "Service"])
def test_unchanged_child_needs_no_patch(manifest: JSON) -> None:
    assert lost_fields(manifest, manifest) == {}


@pytest.mark.parametrize(
    ("manifest", "edit"),
    [
        (POLICY, {"podSelector": {"matchLabels": {"app": "other"}}}),
        (POLICY, {"podSelector": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}),
        (POLICY, {"podSelector": None}),
        (POLICY, {"ingress": [{}]}),
        (POLICY, {"ingress": None}),
        (POLICY, {"egress": [{}], "policyTypes": ["Ingress", "Egress"]}),
        (SERVICE, {"selector": {"app": "other", "ddp-trainer.dev/job-uid": None}}),
        (SERVICE, {"selector": None}),
    ],
)
def test_patch_restores_what_an_edit_changed(manifest: JSON, edit: JSON) -> None:
    edited = {**manifest, "spec": patched(manifest["spec"], edit)}
    assert patched(edited, lost_fields(edited, manifest)) == manifest


def test_patch_leaves_fields_of_the_api_server_alone() -> None:
    stored = {**SERVICE, "spec": {**SERVICE["spec"], "ipFamilies": ["IPv4"]}}
    assert lost_fields(stored, SERVICE) == {}
