"""Metrics of jobs, as text."""

from typing import Any

import pytest

from ddp_operator.runtime.job_metrics import JobCollector
from ddp_wire.exposition import render

STATUS: dict[str, Any] = {
    "attempt": 3,
    "pods": {"image": "trainer:1"},
    "conditions": [
        {"type": "Succeeded", "status": "Unknown", "reason": "Running"},
        {"type": "PodsReady", "status": "True", "reason": "Ready"},
    ],
    "ready": "2/2",
    "members": "0-2,5",
    "resizes": 3,
    "lastResize": {"milliseconds": 2500},
    "restarts": 1,
    "infrastructureRestarts": 2,
    "startTime": "2026-11-25T00:00:00Z",
    "lastFailure": {"reason": "Hung", "pod": "digits-1", "rank": 3, "time": "2026-11-25T00:00:00Z"},
    "progress": {"step": 60, "totalSteps": 120, "loss": "0.25", "samplesPerSecond": 900},
    "goodput": {"dataWaitMilliseconds": 1500, "redoneSteps": 7},
}


def text(*jobs: dict[str, Any]) -> str:
    return render(JobCollector(lambda: jobs)).decode()


def job(status: dict[str, Any] | None) -> dict[str, Any]:
    metadata = {"namespace": "team-a", "name": "digits"}
    return {"metadata": metadata, "spec": {"nodes": 2}, **({"status": status} if status else {})}


@pytest.mark.parametrize(
    "line",
    [
        'ddpjob_info{attempt="3",ddpjob="digits",image="trainer:1",namespace="team-a"} 1.0',
        'ddpjob_state{ddpjob="digits",namespace="team-a",state="Running"} 1.0',
        'ddpjob_nodes{ddpjob="digits",namespace="team-a"} 2.0',
        'ddpjob_hang_limit_seconds{ddpjob="digits",namespace="team-a"} 0.0',
        'ddpjob_nodes_ready{ddpjob="digits",namespace="team-a"} 2.0',
        'ddpjob_members{ddpjob="digits",namespace="team-a"} 4.0',
        'ddpjob_resizes_total{ddpjob="digits",namespace="team-a"} 3.0',
        'ddpjob_last_resize_seconds{ddpjob="digits",namespace="team-a"} 2.5',
        'ddpjob_restarts_total{cause="Infrastructure",ddpjob="digits",namespace="team-a"} 2.0',
        'ddpjob_start_timestamp_seconds{ddpjob="digits",namespace="team-a"} 1.7955648e+09',
        (
            'ddpjob_last_failure_timestamp_seconds{ddpjob="digits",namespace="team-a",node="",'
            'pod="digits-1",rank="3",reason="Hung"} 1.7955648e+09'
        ),
        'ddpjob_step{ddpjob="digits",namespace="team-a"} 60.0',
        'ddpjob_loss{ddpjob="digits",namespace="team-a"} 0.25',
        'ddpjob_time_seconds_total{bucket="data_wait",ddpjob="digits",namespace="team-a"} 1.5',
        'ddpjob_time_seconds_total{bucket="hang",ddpjob="digits",namespace="team-a"} 0.0',
        'ddpjob_redone_steps_total{ddpjob="digits",namespace="team-a"} 7.0',
    ],
)
def test_status_of_a_job_becomes_series(line: str) -> None:
    assert line in text(job(STATUS)).splitlines()


def test_job_without_a_status_has_only_the_series_of_its_size() -> None:
    series = [line for line in text(job(None)).splitlines() if not line.startswith("#")]
    assert series == ['ddpjob_nodes{ddpjob="digits",namespace="team-a"} 2.0']


def test_series_of_a_deleted_job_are_gone() -> None:
    assert text() == ""


@pytest.mark.parametrize(
    "nonsense",
    [
        {"ready": "many"},
        {"progress": {"loss": "little"}},
        {"conditions": [{"type": "Succeeded"}]},
        {"startTime": "yesterday"},
        {"conditions": "none"},
    ],
)
def test_status_with_nonsense_does_not_hide_the_series_of_other_jobs(
    nonsense: dict[str, Any],
) -> None:
    other = {"metadata": {"namespace": "team-b", "name": "strange"}, "status": STATUS | nonsense}
    lines = text(other, job(STATUS)).splitlines()
    assert 'ddpjob_loss{ddpjob="digits",namespace="team-a"} 0.25' in lines


@pytest.mark.parametrize(
    ("spec", "status", "line"),
    [
        (
            {"task": "a:b", "checkpoint": {"claimName": "c", "everySeconds": 14400}},
            {},
            'ddpjob_checkpoint_interval_seconds{ddpjob="digits",namespace="team-a"} 14400.0',
        ),
        (
            {"task": "a:b", "checkpoint": {"claimName": "c", "everySteps": 9}},
            {},
            'ddpjob_checkpoint_interval_seconds{ddpjob="digits",namespace="team-a"} 0.0',
        ),
        (
            {"task": "a:b", "checkpoint": {"claimName": "c"}},
            {"lastCheckpoint": {"step": 1, "intervalSeconds": 588}},
            'ddpjob_checkpoint_interval_seconds{ddpjob="digits",namespace="team-a"} 588.0',
        ),
        (
            {"command": ["a"], "checkpoint": {"claimName": "c"}},
            {"lastCheckpoint": {"step": 1}},
            'ddpjob_checkpoint_interval_seconds{ddpjob="digits",namespace="team-a"} 0.0',
        ),
        (
            {"task": "a:b", "hang": {"detect": True, "stepSeconds": 40, "hookSeconds": 1800}},
            {},
            'ddpjob_hang_limit_seconds{ddpjob="digits",namespace="team-a"} 1800.0',
        ),
        (
            {"task": "a:b"},
            {"conditions": [{"type": "PodsReady", "status": "False", "reason": "Unschedulable"}]},
            'ddpjob_pods_not_ready{ddpjob="digits",namespace="team-a",reason="Unschedulable"} 1.0',
        ),
    ],
)
def test_settings_of_a_job_become_series_for_alert_limits(
    spec: dict[str, Any], status: dict[str, Any], line: str
) -> None:
    assert line in text({**job(STATUS | status), "spec": spec}).splitlines()


@pytest.mark.parametrize("spec", [{"task": "a:b"}, {"command": ["a"], "checkpoint": {}}])
def test_job_without_a_checkpoint_report_has_no_interval_series(spec: dict[str, Any]) -> None:
    assert "ddpjob_checkpoint_interval" not in text({**job(STATUS), "spec": spec})


def test_ready_job_has_no_series_of_a_reason_to_wait() -> None:
    assert "ddpjob_pods_not_ready" not in text(job(STATUS))
