"""Jobs that the controller cannot read: invalid specs, and statuses of a newer operator."""

from typing import Any

import pytest

from ddp_operator.api.status import DDPJobStatus
from tests.operator.runtime.test_controller import KEY, Bench
from tests.operator.support import failed_status, job_manifest, summary


async def test_invalid_job_is_reported_once_and_not_reconciled() -> None:
    bench = Bench()
    bench.cluster.apply({**job_manifest(), "spec": {"nodes": 2}})
    for _ in range(3):
        assert await bench.reconcile() is None
    assert bench.cluster.writes == ["status digits", "event digits"]
    status = DDPJobStatus.model_validate(bench.cluster.statuses[-1])
    sentence = "spec: one of task and command must be set"
    assert summary(status) == ("Unknown", "Invalid", sentence)
    assert status.observed_generation == 2
    assert [(e.reason, e.message) for e in bench.cluster.events] == [("Invalid", sentence)]


async def test_invalid_job_starts_after_it_is_fixed() -> None:
    bench = Bench()
    bench.cluster.apply({**job_manifest(), "spec": {"nodes": 2}})
    await bench.reconcile()
    bench.cluster.apply(job_manifest(nodes=2))
    await bench.reconcile_until_idle()
    assert summary(bench.status())[1] == "Pending"
    assert len(bench.cluster.pods()) == 2


@pytest.mark.parametrize(
    "status",
    [
        {"attempt": "written by another version"},
        {
            "conditions": [
                {
                    "type": "Succeeded",
                    "status": "True",
                    "reason": "Completed",
                    "lastTransitionTime": "2026-03-01T12:00:00Z",
                }
            ]
        },
    ],
    ids=["unreadable", "finished"],
)
async def test_unreadable_or_final_status_of_an_invalid_job_is_kept(status: dict[str, Any]) -> None:
    bench = Bench()
    bench.cluster.jobs[KEY]["status"] = status
    bench.cluster.apply({**job_manifest(), "spec": {"nodes": 2}})
    assert await bench.reconcile() is None
    assert bench.cluster.writes == []


@pytest.mark.parametrize(
    ("field", "value", "acts"),
    [
        ("lastFailure", {"attempt": 1, "reason": "x", "cause": "Cosmic", "time": "soon"}, True),
        ("attempt", "two", False),
    ],
)
async def test_values_of_a_newer_operator_are_reported_once(
    field: str, value: Any, acts: bool
) -> None:
    bench = Bench()
    await bench.train()
    bench.cluster.jobs[KEY]["status"][field] = value
    bench.cache.replace(bench.cluster.snapshot())
    bench.set_agent_status("digits-1", failed_status(1), ready=False)
    for _ in range(3):
        await bench.reconcile()
    warnings = [e.message for e in bench.cluster.events if e.reason == "UnknownStatus"]
    assert len(warnings) == 1
    assert f"status.{field}" in warnings[0]
    assert [e.reason for e in bench.cluster.events].count("Restarting") == int(acts)


async def test_config_that_the_loop_refuses_makes_a_job_invalid_before_any_pod() -> None:
    bench = Bench(config={"epoch": 3})
    assert await bench.reconcile() is None
    assert bench.cluster.writes == ["status digits", "event digits"]
    sentence = 'spec.config: unknown key "epoch"; did you mean "epochs"?'
    assert summary(bench.status()) == ("Unknown", "Invalid", sentence)
    bench.cluster.apply(job_manifest(nodes=2, config={"epochs": 3}))
    await bench.reconcile_until_idle()
    assert len(bench.cluster.pods()) == 2


async def test_refused_config_affects_neither_a_training_job_nor_a_suspended_one() -> None:
    bench = Bench(config={"epochs": 3})
    await bench.train()
    bench.cluster.apply(job_manifest(nodes=2, config={"epoch": 3}))
    await bench.reconcile_until_idle()
    assert summary(bench.status())[1] == "Invalid"
    assert [pod["metadata"].get("deletionTimestamp") for pod in bench.cluster.pods()] == [None] * 2
    bench.cluster.apply(job_manifest(nodes=2, config={"epochs": 3}))
    await bench.reconcile_until_idle()
    assert (summary(bench.status())[1], bench.status().attempt) == ("Running", 1)
    bench.cluster.apply(job_manifest(nodes=2, config={"epoch": 3}, suspend=True))
    await bench.reconcile_until_idle()
    assert summary(bench.status())[1] == "Suspended"


async def test_image_of_the_user_may_know_other_settings() -> None:
    bench = Bench(config={"epoch": 3}, image="registry.example/mine:1")
    await bench.reconcile_until_idle()
    assert len(bench.cluster.pods()) == 2
