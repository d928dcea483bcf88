"""Merge patches that restore an edited child."""

import copy
import json
from typing import Any

import pytest

from ddp_operator.builders.network import build_network_policy
from ddp_operator.builders.service import build_service
from ddp_operator.cluster.kube.documents import lost_fields, refusal
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
        (SERVICE, {"publishNotReadyAddresses": False}),
        (SERVICE, {"publishNotReadyAddresses": None}),
    ],
)
def test_patch_restores_what_an_edit_changed(manifest: JSON, edit: JSON) -> None:
    edited = {**manifest, "spec": patched(manifest["spec"], edit)}
    assert patched(edited, lost_fields(edited, manifest)) == manifest


def test_patch_leaves_fields_of_the_api_server_alone() -> None:
    stored = {**SERVICE, "spec": {**SERVICE["spec"], "ipFamilies": ["IPv4"]}}
    assert lost_fields(stored, SERVICE) == {}


def test_refusal_in_a_namespace_that_is_being_deleted_asks_for_a_pause() -> None:
    """The document is a response of Kubernetes 1.36."""
    status = {
        "status": "Failure",
        "message": 'pods "digits-0" is forbidden: unable to create new content in namespace a'
        " because it is being terminated",
        "reason": "Forbidden",
        "details": {
            "name": "digits-0",
            "kind": "pods",
            "causes": [
                {
                    "reason": "NamespaceTerminating",
                    "message": "namespace a is being terminated",
                    "field": "metadata.namespace",
                }
            ],
        },
        "code": 403,
    }
    error = refusal(403, json.dumps(status).encode(), None)
    assert (str(error), error.retry_after) == (status["message"], 5.0)
    quota = {**status, "details": {"name": "digits-0", "kind": "pods"}}
    assert refusal(403, json.dumps(quota).encode(), None).retry_after is None


@pytest.mark.parametrize("text", [b"<html>", b"[]", b'"busy"', b'{"details": []}'])
def test_refusal_without_a_status_document_names_the_http_status(text: bytes) -> None:
    error = refusal(429, text, "7")
    assert (str(error), error.retry_after) == ("HTTP status 429", 7.0)
