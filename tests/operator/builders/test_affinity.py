"""Affinity of worker pods: the job's own terms stay, and strikes add one."""

from typing import Any

import pytest

from ddp_operator.api.status import StrikeStatus
from ddp_operator.builders.pod import build_pod
from tests.operator.support import DEFAULTS, NOW, new_job, with_status

PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
ZONE = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["z"]}]}
MUST = {REQUIRED: {"nodeSelectorTerms": [ZONE]}}
OWN = {"weight": 1, "preference": ZONE}


def strikes(**counts: int) -> list[StrikeStatus]:
    return [StrikeStatus(node=n, count=c, last_time=NOW) for n, c in counts.items()]


def affinity_of(template: Any = None, **counts: int) -> Any:
    """Return the affinity of a new pod of a job with strikes, with this affinity of its own."""
    spec: dict[str, Any] = {}
    if template is not None:
        spec["podTemplate"] = {"spec": {"affinity": template}}
    job = with_status(new_job(**spec), strikes=strikes(**counts))
    return build_pod(job, 0, 1, DEFAULTS)["spec"].get("affinity")


def against(*nodes: str) -> dict[str, Any]:
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]
    return {"weight": 100, "preference": {"matchFields": fields}}


def test_pod_prefers_nodes_with_fewer_than_two_strikes() -> None:
    assert affinity_of() is None
    assert affinity_of(a=1) is None
    assert affinity_of(b=2, c=1, a=7) == {"nodeAffinity": {PREFERRED: [against("a", "b")]}}


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({"nodeAffinity": {PREFERRED: [OWN]}}, {"nodeAffinity": {PREFERRED: [OWN, against("a")]}}),
        ({"nodeAffinity": MUST}, {"nodeAffinity": {**MUST, PREFERRED: [against("a")]}}),
        ({"nodeAffinity": None}, {"nodeAffinity": {PREFERRED: [against("a")]}}),
        ({"nodeAffinity": {PREFERRED: None}}, {"nodeAffinity": {PREFERRED: [against("a")]}}),
        (
            {"podAffinity": {"x": 1}},
            {"podAffinity": {"x": 1}, "nodeAffinity": {PREFERRED: [against("a")]}},
        ),
        # The API server reports these.
        ({"nodeAffinity": "x"}, {"nodeAffinity": "x"}),
        ({"nodeAffinity": {PREFERRED: "x"}}, {"nodeAffinity": {PREFERRED: "x"}}),
        ("x", "x"),
    ],
)
def test_strikes_are_added_to_the_affinity_of_the_job(own: Any, expected: Any) -> None:
    """Before, a preference of the podTemplate replaced the one against the struck node."""
    assert affinity_of(own) == own
    assert affinity_of(own, a=2) == expected
