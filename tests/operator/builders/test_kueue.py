"""Marks of pods under Kueue, and the reason in a Workload that is not admitted."""

from dataclasses import replace
from typing import Any

import pytest

from ddp_operator.api.gang import GangType
from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import StrikeStatus
from ddp_operator.builders.gangs.kueue import why_waiting
from ddp_operator.builders.gangs.schedulers import recorded_gang
from ddp_operator.builders.gangs.versions import KUEUE, Gangs
from ddp_operator.builders.kinds import GROUP_ROWS, kinds_in_use
from ddp_operator.builders.pod import build_pod
from ddp_operator.reconcile.children import fresh_pods
from tests.operator.support import DEFAULTS, NOW, new_job, with_status
from tests.scenarios.kueue import role_of, webhook

OFFERED = replace(
    DEFAULTS,
    gangs=Gangs(types=(GangType.KUEUE,), queue="shared", served=((GangType.KUEUE, KUEUE),)),
)


def kueue_job(name: str = "digits", **spec: Any) -> DDPJob:
    job = new_job(name, **({"nodes": 3, "gang": {"type": "Kueue", "queue": "research"}} | spec))
    return with_status(job, attempt=1, pods=fresh_pods(job, OFFERED))


def marks(pod: dict[str, Any]) -> dict[str, str]:
    """Return the labels and annotations of a pod that Kueue reads."""
    found = pod["metadata"]["labels"] | pod["metadata"]["annotations"]
    return {k.partition("/")[2]: v for k, v in found.items() if k.startswith("kueue.x-k8s.io/")}


def test_pod_of_the_gang_has_the_marks_of_its_group() -> None:
    pod = build_pod(kueue_job(), 1, 1, OFFERED)
    assert marks(pod) == {
        "queue-name": "research",
        "pod-group-name": "digits-1-6f1c4",
        "pod-group-pod-index": "1",
        "pod-group-total-count": "3",
        "role-hash": "workers",
        "safe-to-forcefully-delete": "true",
    }
    assert pod["metadata"]["annotations"]["ddp-trainer.dev/gang-group"] == "digits-1-6f1c4"


def test_pods_outside_the_gang_wait_in_the_queue_for_themselves() -> None:
    job = kueue_job(elastic={"minNodes": 2}, spares=1)
    sizes = [marks(build_pod(job, i, 1, OFFERED)).get("pod-group-total-count") for i in range(4)]
    assert sizes == ["2", "2", None, None]
    alone = {"queue-name": "research", "safe-to-forcefully-delete": "true"}
    for index in (2, 3):
        pod = build_pod(job, index, 1, OFFERED)
        assert marks(pod) == alone
        assert "ddp-trainer.dev/gang-group" not in pod["metadata"]["annotations"]


def test_role_stays_when_a_new_pod_avoids_a_kubernetes_node() -> None:
    """Kueue would end a group whose new pod has another role."""
    job = kueue_job()
    strikes = [StrikeStatus(node="bad", count=2, last_time=NOW)]
    first = build_pod(job, 0, 1, OFFERED)
    second = build_pod(with_status(job, strikes=strikes), 0, 2, OFFERED, 2)
    assert first["spec"].get("affinity") != second["spec"]["affinity"]
    assert role_of(webhook(first)) == role_of(webhook(second))


@pytest.mark.parametrize("length", [1, 50, 58])
def test_name_of_a_group_is_a_label(length: int) -> None:
    job = with_status(kueue_job("a" * length), attempt=9998)
    gang = fresh_pods(job, OFFERED).gang
    assert gang is not None
    assert len(gang.group) <= 63
    assert gang.group.endswith("-9999-6f1c4")


def test_group_of_a_later_job_with_the_same_name_has_another_name() -> None:
    first = kueue_job()
    metadata = first.metadata.model_copy(update={"uid": "0" * 36})
    second = fresh_pods(first.model_copy(update={"metadata": metadata}), OFFERED).gang
    old = recorded_gang(first)
    assert old is not None
    assert second is not None
    assert old.group != second.group


def test_queue_of_the_installation_is_the_default() -> None:
    gang = recorded_gang(kueue_job(gang={"type": "Kueue"}))
    assert gang is not None
    assert gang.queue == "shared"


def test_operator_builds_and_watches_no_workloads() -> None:
    assert not any("kueue" in row for row in GROUP_ROWS)
    assert not any("kueue" in kind.api_version for kind in kinds_in_use(OFFERED))


def _condition(kind: str, value: str, **more: str) -> dict[str, str]:
    return {"type": kind, "status": value, **more}


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ([], ""),
        ([_condition("QuotaReserved", "False", message="no room")], "no room"),
        ([_condition("QuotaReserved", "True", message="old news")], ""),
        (
            [
                _condition("QuotaReserved", "False", message="no room"),
                _condition("Evicted", "True", reason="Preempted", message="for another job"),
            ],
            "evicted (Preempted): for another job; no room",
        ),
        ([_condition("Evicted", "False", reason="Preempted", message="old news")], ""),
    ],
)
def test_reason_in_a_workload(conditions: list[dict[str, str]], expected: str) -> None:
    assert why_waiting({"status": {"conditions": conditions}}) == expected
    stopped = {"spec": {"active": False}, "status": {"conditions": conditions}}
    assert why_waiting(stopped).startswith("the Workload is deactivated")
