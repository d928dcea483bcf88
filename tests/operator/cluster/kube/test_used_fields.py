"""Objects that the operator keeps in memory, without the fields that it does not read."""

import json
from typing import Any

from ddp_operator.api.job import parse_job
from ddp_operator.builders.network import build_network_policy
from ddp_operator.builders.pod import build_pod
from ddp_operator.cluster.kube.used_fields import keep_used_fields
from tests.operator.support import (
    AGENT_CLIENTS,
    DEFAULTS,
    UID,
    active_job,
    job_manifest,
    pod_manifest,
)

MANAGED = [{"manager": "kubelet", "fieldsV1": {f"f:{n}": {} for n in range(200)}}]


def real_pod() -> dict[str, Any]:
    """Return a pod with all fields that an API server adds to the operator's manifest."""
    job = active_job()
    pod = build_pod(job, 1, 1, DEFAULTS)
    seen = pod_manifest(job, 1, conditions=[{"type": "Ready", "status": "True"}])
    pod["metadata"] |= {**seen["metadata"], "managedFields": MANAGED}
    pod["metadata"]["labels"]["team"] = "vision"
    return {**pod, "status": seen["status"], "spec": {**pod["spec"], "nodeName": "machine-1"}}


def test_pod_shrinks_to_less_than_a_kilobyte() -> None:
    kept = keep_used_fields("Pod", real_pod())
    assert len(json.dumps(kept)) < 1024 < len(json.dumps(real_pod())) / 4
    assert keep_used_fields("Pod", kept) == kept
    assert "team" not in kept["metadata"]["labels"]


def test_equal_short_strings_of_two_objects_share_memory() -> None:
    text = json.dumps(real_pod())
    one, other = (keep_used_fields("Pod", json.loads(text)) for _ in range(2))
    assert one == other
    assert one["metadata"]["uid"] is other["metadata"]["uid"]
    keys = [list(pod["status"]["conditions"][0]) for pod in (one, other)]
    assert all(a is b for a, b in zip(*keys, strict=True))
    job = {**job_manifest(), "status": {"message": "x" * 100}}
    long, same = (keep_used_fields("DDPJob", json.loads(json.dumps(job))) for _ in range(2))
    assert long["status"]["message"] == same["status"]["message"]


def test_service_keeps_its_selector_and_owner() -> None:
    metadata = {"name": "digits", "namespace": "team-a", "uid": "s", "resourceVersion": "7"}
    owner = {"apiVersion": "v1", "kind": "DDPJob", "name": "digits", "uid": "j"}
    service = {
        "metadata": {**metadata, "ownerReferences": [owner], "managedFields": MANAGED},
        "spec": {"selector": {"a": "b"}, "clusterIP": "None"},
    }
    kept = keep_used_fields("Service", service)
    assert kept["spec"] == {"selector": {"a": "b"}}
    assert kept["metadata"].items() >= metadata.items()
    assert kept["metadata"]["ownerReferences"] == [{"uid": "j"}]


def test_network_policy_keeps_its_rules_and_owner() -> None:
    policy = build_network_policy(active_job(), AGENT_CLIENTS)
    policy["metadata"] |= {"uid": "n", "resourceVersion": "7", "managedFields": MANAGED}
    kept = keep_used_fields("NetworkPolicy", policy)
    assert kept["spec"] == policy["spec"]
    assert kept["metadata"]["ownerReferences"] == [{"uid": UID}]
    assert "managedFields" not in kept["metadata"]


def test_kubernetes_node_keeps_only_what_its_view_needs() -> None:
    identity = {"name": "machine-0", "uid": "n", "resourceVersion": "7"}
    taint = {"key": "gpu", "value": "old", "effect": "NoSchedule"}
    node = {
        "metadata": {**identity, "labels": {"zone": "a"}, "managedFields": MANAGED},
        "spec": {
            "unschedulable": True,
            "taints": [{**taint, "timeAdded": "2026-03-01T12:00:00Z"}],
            "providerID": "gce://x",
        },
        "status": {"images": [{"names": ["trainer"]}]},
    }
    kept = keep_used_fields("Node", node)
    metadata = {**identity, "labels": {"zone": "a"}}
    assert kept == {"metadata": metadata, "spec": {"unschedulable": True, "taints": [taint]}}
    assert keep_used_fields("Node", kept) == kept


def test_job_keeps_spec_status_and_the_annotations_of_its_user() -> None:
    job = job_manifest()
    last = {"kubectl.kubernetes.io/last-applied-configuration": "{}"}
    full = {
        **job,
        "metadata": {
            **job["metadata"],
            "managedFields": MANAGED,
            "annotations": {"team": "vision", **last},
        },
    }
    kept = keep_used_fields("DDPJob", full)
    assert kept["metadata"] == {**job["metadata"], "annotations": {"team": "vision"}}
    assert {**kept, "metadata": job["metadata"]} == job
    assert parse_job(kept).spec == parse_job(full).spec
