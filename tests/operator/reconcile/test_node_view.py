"""Tests of the views of Kubernetes nodes: the pods that a node no longer accepts."""

from typing import Any

import pytest

from ddp_operator.cluster.kube.used_fields import keep_used_fields
from ddp_operator.reconcile.node_view import CONDITION_TAINTS, view_node, view_tolerations
from ddp_operator.reconcile.pod_view import view_pod
from tests.operator.support import active_job, pod_manifest

TAINT = {"key": "gpu", "value": "old", "effect": "NoSchedule"}


def why(toleration: dict[str, Any] | None = None, **spec: Any) -> str | None:
    """Return why a node with this spec would not accept a pod with this toleration."""
    view = view_node({"metadata": {"name": "machine-1"}, "spec": spec}, "gpu")
    return view.why_unusable(view_tolerations([toleration] if toleration is not None else []))


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        (None, False),
        ({}, False),
        ({"operator": "Exists"}, True),
        ({"operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "gpu", "operator": "Exists"}, True),
        ({"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}, True),
        ({"key": "gpu", "value": "old"}, True),
        ({"key": "gpu", "operator": "Equal", "value": "old", "effect": ""}, True),
        ({"key": "gpu", "value": "new"}, False),
        ({"key": "gpu"}, False),
        ({"key": "tpu", "operator": "Exists"}, False),
    ],
)
def test_taint_is_tolerated_by_the_rules_of_kubernetes(
    toleration: dict[str, Any] | None, tolerated: bool
) -> None:
    sentence = "the Kubernetes node machine-1 has the taint gpu=old:NoSchedule"
    assert why(toleration, taints=[TAINT]) == (None if tolerated else sentence)


def test_cordoned_node_is_reported_as_cordoned_without_its_taint() -> None:
    taint = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    sentence = "the Kubernetes node machine-1 is cordoned"
    assert why({"operator": "Exists"}, unschedulable=True, taints=[taint]) == sentence
    assert why(unschedulable=False, taints=[taint]) is None


@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute"])
def test_taint_of_a_short_node_condition_moves_no_member(effect: str) -> None:
    taints = [{"key": key, "effect": effect} for key in sorted(CONDITION_TAINTS)]
    assert len(taints) == 6
    assert why(taints=taints) is None
    assert why(taints=[*taints, {"key": "broken", "effect": "NoSchedule"}]) is not None


def test_taint_prefer_no_schedule_makes_no_node_unusable() -> None:
    assert why(taints=[{**TAINT, "effect": "PreferNoSchedule"}]) is None


def test_tolerations_that_the_cluster_added_to_a_pod_are_respected() -> None:
    pod = pod_manifest(active_job())
    lost = {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}
    added = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    pod["spec"]["tolerations"] = [{**lost, "tolerationSeconds": 5}, added]
    kept = keep_used_fields("Pod", pod)
    assert kept["spec"]["tolerations"] == [added]
    view = view_node(
        {
            "metadata": {"name": "machine-0"},
            "spec": {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]},
        },
        "gpu",
    )
    assert view.why_unusable(view_pod(kept).tolerations) is None
    assert view.why_unusable(()) is not None
