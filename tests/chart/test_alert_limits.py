"""Alerts whose limits are settings of a job, and metrics that a worker pod claims."""

import re
from pathlib import Path

import pytest
import yaml

from ddp_agent.status import metrics as agent
from ddp_operator.runtime import job_metrics, metrics
from ddp_wire.families import WORKER_PREFIXES
from tests.chart.test_chart import find_one, rendered
from tests.chart.test_rules import (
    PENDING,
    RULES,
    RUNNING,
    STARTED,
    Series,
    alerts,
    evaluate,
    job,
    saves,
    unit_test,
    waits,
    worker,
)

pytestmark = pytest.mark.api

SPECIAL: dict[str, tuple[str, tuple[Series, ...], int, bool]] = {
    "a job waits for room": ("DDPJobNotStarting", (PENDING, waits("Unschedulable")), 60, False),
    "a queue holds a job": ("DDPJobNotStarting", (PENDING, waits("SchedulingGated")), 60, False),
    "a quota holds a job": ("DDPJobNotStarting", (PENDING, waits("QuotaExceeded")), 60, False),
    "another job owns the directory of the checkpoints": (
        "DDPJobNotStarting",
        (PENDING, waits("CheckpointPathInUse")),
        60,
        False,
    ),
    "pods run and ranks do not join": ("DDPJobNotStarting", (PENDING, waits("NotReady")), 60, True),
    "updates take half an hour, as spec.hang allows": (
        "DDPJobNoProgress",
        (
            RUNNING,
            (job("ddpjob_hang_limit_seconds"), "1800x300"),
            (job("ddpjob_progress_timestamp_seconds"), "2400x300"),
        ),
        60,
        False,
    ),
    "a job has trained for 3 hours and has never saved": (
        "DDPJobNoCheckpoint",
        (
            RUNNING,
            STARTED,
            saves(0),
            (job("ddpjob_time_seconds_total", bucket="training"), "0+60x300"),
        ),
        180,
        True,
    ),
    "a job has waited for 3 hours and has never saved": (
        "DDPJobNoCheckpoint",
        (
            RUNNING,
            STARTED,
            saves(0),
            (job("ddpjob_time_seconds_total", bucket="queued"), "0+60x300"),
        ),
        180,
        False,
    ),
    "a job without checkpoints": (
        "DDPJobNoCheckpoint",
        (RUNNING, STARTED, (job("ddpjob_time_seconds_total", bucket="training"), "0+60x300")),
        180,
        False,
    ),
    "a job saves every 4 hours": (
        "DDPJobNoCheckpoint",
        (RUNNING, STARTED, saves(14400), (job("ddpjob_checkpoint_timestamp_seconds"), "60x300")),
        290,
        False,
    ),
    "a job was resumed an hour ago": (
        "DDPJobNoCheckpoint",
        (
            RUNNING,
            (job("ddpjob_start_timestamp_seconds"), "14400x300"),
            saves(0),
            (job("ddpjob_checkpoint_timestamp_seconds"), "60x300"),
        ),
        290,
        False,
    ),
}


def test_alerts_follow_the_settings_of_a_job_and_do_not_fire_for_queued_jobs(
    tmp_path: Path,
) -> None:
    tests = [
        unit_test(alert, series, minute, fires=fires) | {"name": name}
        for name, (alert, series, minute, fires) in SPECIAL.items()
    ]
    evaluate(tests, tmp_path)


OPERATOR_FAMILIES = (*metrics.FAMILIES, *job_metrics.FAMILIES)


def test_worker_pod_cannot_export_series_of_the_operator() -> None:
    """The scrape configurations keep the metrics of workers by name."""
    scraped = yaml.safe_load((RULES.with_name("scrape.yaml")).read_text("utf-8"))["scrape_configs"]
    [plain] = [j["metric_relabel_configs"] for j in scraped if j["job_name"].endswith("workers")]
    monitors = rendered("--api-versions", "monitoring.coreos.com/v1/PodMonitor")
    endpoint = find_one(monitors, "PodMonitor", "ddp-trainer-workers")["spec"][
        "podMetricsEndpoints"
    ]
    [keep, _], [kept, _] = plain, endpoint[0]["metricRelabelings"]
    assert keep["action"] == kept["action"] == "keep"
    assert keep["source_labels"] == kept["sourceLabels"] == ["__name__"]
    assert keep["regex"] == kept["regex"] == f"({'|'.join(WORKER_PREFIXES)})_.*"
    names = [f.name + suffix for f in OPERATOR_FAMILIES for suffix in ("", "_bucket", "_total")]
    assert not [name for name in names if re.fullmatch(keep["regex"], name)]
    assert all(re.fullmatch(keep["regex"], family.name) for family in agent.FAMILIES)


def test_series_of_a_worker_affect_no_alert_about_the_operator(
    tmp_path: Path,
) -> None:
    """A Prometheus that finds pods by annotations keeps each name. The rules select a namespace."""
    labels = {"result": "error", "code": "503", "state": "silent", "le": "+Inf", "replica": "1"}
    series = tuple(
        (worker(family.name + suffix, **labels), "0+1000x300")
        for family in metrics.FAMILIES
        for suffix in ("", "_bucket")
    )
    quiet = [
        unit_test(name, series, 60, fires=name == "DDPOperatorNotScraped")
        for name in alerts()
        if name.startswith("DDPOperator") or name == "DDPAgentsSilent"
    ]
    evaluate(quiet, tmp_path)
