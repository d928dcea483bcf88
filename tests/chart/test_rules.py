"""Alerts and recording rules: promtool evaluates each alert on series that fire it or do not."""

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.test_chart import find_one, rendered
from tests.harness import binaries
from tests.harness.install import ROOT

pytestmark = pytest.mark.api

RULES = ROOT / "manifests" / "prometheus" / "rules.yaml"
RUNBOOKS = ROOT / "docs" / "operate" / "runbooks"
Series = tuple[str, str]
"""A series, and its values in promtool's notation, one per minute."""


@dataclass(frozen=True)
class Case:
    """Series with which an alert fires, and series with which it does not, at a minute."""

    fires: tuple[Series, ...]
    quiet: tuple[Series, ...]
    minute: int = 60


def job(name: str, **labels: str) -> str:
    """Return a series of one job."""
    given = {"namespace": "team-a", "ddpjob": "digits", **labels}
    return name + "{" + ",".join(f'{k}="{v}"' for k, v in given.items()) + "}"


def operator(name: str, **labels: str) -> str:
    """Return a series of the operator."""
    given = {"namespace": "ddp-system", "pod": "ddp-trainer-1", **labels}
    return name + "{" + ",".join(f'{k}="{v}"' for k, v in given.items()) + "}"


def worker(name: str, **labels: str) -> str:
    """Return a series of a tenant's pod, with the labels that the scrape configuration gives it."""
    given = {"namespace": "tenant", "pod": "evil-0", "ddpjob": "evil", **labels}
    return name + "{" + ",".join(f'{k}="{v}"' for k, v in given.items()) + "}"


RUNNING = (job("ddpjob_state", state="Running"), "1x300")
NO_HANG_LIMIT = (job("ddpjob_hang_limit_seconds"), "0x300")


def saves(every: int) -> Series:
    """Return the series of a job with this value of everySeconds."""
    return (job("ddpjob_checkpoint_interval_seconds"), f"{every}x300")


STARTED = (job("ddpjob_start_timestamp_seconds"), "0x300")
OTHER_LEADER = (operator("ddp_operator_leader", namespace="other"), "1x300")
FALSE_LEADER = (worker("ddp_operator_leader"), "1x300")


def waits(reason: str) -> Series:
    """Return the series of a job whose pods are not ready for this reason."""
    return (job("ddpjob_pods_not_ready", reason=reason), "1x300")


PENDING = (job("ddpjob_state", state="Pending"), "1x300")
CASES = {
    "DDPJobFailed": Case(
        fires=(
            (job("ddpjob_state", state="Failed"), "1x300"),
            (job("ddpjob_completion_timestamp_seconds"), "3000x300"),
        ),
        quiet=(
            (job("ddpjob_state", state="Failed"), "1x300"),
            (job("ddpjob_completion_timestamp_seconds"), "0x300"),
        ),
        minute=61,
    ),
    "DDPJobNotStarting": Case(
        fires=(PENDING, waits("ErrImagePull")),
        quiet=((job("ddpjob_state", state="Pending"), "1x40 _x60"), RUNNING),
    ),
    "DDPJobNoProgress": Case(
        fires=(RUNNING, NO_HANG_LIMIT, (job("ddpjob_progress_timestamp_seconds"), "600x300")),
        quiet=(RUNNING, NO_HANG_LIMIT, (job("ddpjob_progress_timestamp_seconds"), "0+60x300")),
    ),
    "DDPJobRestartsOften": Case(
        fires=((job("ddpjob_restarts_total", cause="Application"), "0+0.2x300"),),
        quiet=((job("ddpjob_restarts_total", cause="Application"), "0x30 1x300"),),
    ),
    "DDPJobNoCheckpoint": Case(
        fires=(RUNNING, STARTED, saves(0), (job("ddpjob_checkpoint_timestamp_seconds"), "60x300")),
        quiet=(
            RUNNING,
            STARTED,
            saves(0),
            (job("ddpjob_checkpoint_timestamp_seconds"), "0+60x300"),
        ),
        minute=150,
    ),
    "DDPJobWaitsForData": Case(
        fires=(
            (job("ddp_train_data_wait_seconds_total", rank="0"), "0+30x300"),
            (job("ddp_train_update_seconds_total", rank="0"), "0+60x300"),
        ),
        quiet=(
            (job("ddp_train_data_wait_seconds_total", rank="0"), "0+6x300"),
            (job("ddp_train_update_seconds_total", rank="0"), "0+60x300"),
        ),
    ),
    "DDPWorkerOutOfMemory": Case(
        fires=((job("ddp_agent_oom_kills_total", pod="digits-0"), "0x55 1x300"),),
        quiet=((job("ddp_agent_oom_kills_total", pod="digits-0"), "1x300"),),
    ),
    "DDPWorkersNotScraped": Case(
        fires=(RUNNING,),
        quiet=(RUNNING, (job("ddp_agent_info", attempt="1", node_index="0"), "1x300")),
    ),
    "DDPGpuMemoryErrors": Case(
        fires=((job("ddp_gpu_ecc_errors_total", gpu="0", node="a"), "0x30 2x300"),),
        quiet=((job("ddp_gpu_ecc_errors_total", gpu="0", node="a"), "2x300"),),
    ),
    "DDPGpuXid": Case(
        fires=((job("ddp_gpu_xid_errors_total", gpu="0", node="a", xid="79"), "_x30 1x300"),),
        quiet=(
            (job("ddp_gpu_xid_errors_total", gpu="0", node="a", xid="31"), "_x30 1x300"),
            (job("ddp_gpu_xid_errors_total", gpu="1", node="a", xid="79"), "1x300"),
        ),
        minute=61,
    ),
    "DDPGpuHot": Case(
        fires=((job("ddp_gpu_temperature_celsius", gpu="0", node="a"), "93x300"),),
        quiet=((job("ddp_gpu_temperature_celsius", gpu="0", node="a"), "70x50 93x5 70x300"),),
    ),
    "DDPOperatorNotLeading": Case(
        fires=((operator("ddp_operator_leader"), "1x40 0x300"), FALSE_LEADER, OTHER_LEADER),
        quiet=(
            (operator("ddp_operator_leader"), "0x300"),
            (operator("ddp_operator_leader", replica="2"), "1x300"),
        ),
    ),
    "DDPOperatorNotScraped": Case(
        fires=(FALSE_LEADER, OTHER_LEADER),
        quiet=((operator("ddp_operator_leader"), "0x300"),),
    ),
    "DDPOperatorErrors": Case(
        fires=((operator("ddp_operator_reconciles_total", result="error"), "0+1x300"),),
        quiet=(
            (operator("ddp_operator_reconciles_total", result="error"), "0x300"),
            (operator("ddp_operator_reconciles_total", result="conflict"), "0+9x300"),
        ),
    ),
    "DDPOperatorRequestsFail": Case(
        fires=(
            (operator("ddp_operator_api_requests_total", code="503"), "0+10x300"),
            (operator("ddp_operator_api_requests_total", code="200"), "0+90x300"),
        ),
        quiet=(
            (operator("ddp_operator_api_requests_total", code="409"), "0+10x300"),
            (operator("ddp_operator_api_requests_total", code="200"), "0+90x300"),
        ),
    ),
    "DDPOperatorSlow": Case(
        fires=((operator("ddp_operator_queue_oldest_seconds"), "20x300"),),
        quiet=(
            (operator("ddp_operator_queue_oldest_seconds"), "0x300"),
            (operator("ddp_operator_event_loop_lag_seconds_bucket", le="0.1"), "0+600x300"),
            (operator("ddp_operator_event_loop_lag_seconds_bucket", le="+Inf"), "0+600x300"),
        ),
    ),
    "DDPOperatorNotificationsLost": Case(
        fires=((operator("ddp_operator_notifications_total", result="failed"), "0x40 1x300"),),
        quiet=(
            (operator("ddp_operator_notifications_total", result="failed"), "3x300"),
            (operator("ddp_operator_notifications_total", result="dropped"), "0x300"),
            (operator("ddp_operator_notifications_total", result="delivered"), "0+9x300"),
        ),
    ),
    "DDPAgentsSilent": Case(
        fires=(
            (operator("ddp_operator_agents", state="silent"), "9x300"),
            (operator("ddp_operator_agents", state="answering"), "1x300"),
        ),
        quiet=(
            (operator("ddp_operator_agents", state="silent"), "1x300"),
            (operator("ddp_operator_agents", state="answering"), "9x300"),
        ),
    ),
}


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def alerts() -> dict[str, dict[str, Any]]:
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def promtool(*arguments: str) -> None:
    program = binaries.prometheus().binary("promtool")
    done = subprocess.run(
        [program, *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def unit_test(
    alert: str, series: tuple[Series, ...], minute: int, *, fires: bool
) -> dict[str, Any]:
    """Return a unit test of promtool."""
    expected = [{"labels": "{}", "value": 1}] if fires else []
    query = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})'
    return {
        "name": f"{alert} {'fires' if fires else 'does not fire'}",
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series],
        "promql_expr_test": [
            {"expr": query, "eval_time": f"{minute}m", "exp_samples": expected},
        ],
    }


def test_promtool_accepts_the_rules() -> None:
    promtool("check", "rules", str(RULES))


def evaluate(tests: list[dict[str, Any]], folder: Path) -> None:
    """Let promtool evaluate unit tests of the rules."""
    document = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}
    file = folder / "test.yaml"
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    promtool("test", "rules", str(file))


@pytest.mark.parametrize("alert", CASES)
def test_alert_fires_in_its_case_and_stays_quiet_in_a_normal_case(
    alert: str, tmp_path: Path
) -> None:
    case = CASES[alert]
    tests = [
        unit_test(alert, case.fires, case.minute, fires=True),
        unit_test(alert, case.quiet, case.minute, fires=False),
    ]
    evaluate(tests, tmp_path)


def test_every_alert_has_a_case_a_runbook_and_a_severity() -> None:
    assert CASES.keys() == alerts().keys()
    for name, rule in alerts().items():
        assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
        assert rule["annotations"]["runbook_url"] == f"docs/operate/runbooks/{name}.md"
        assert rule["labels"]["severity"] in {"info", "warning", "critical"}
    pages = {page.stem for page in RUNBOOKS.glob("*.md")} - {"README"}
    assert pages == alerts().keys()


@pytest.mark.parametrize("name", CASES)
def test_every_runbook_has_the_same_sections(name: str) -> None:
    lines = (RUNBOOKS / f"{name}.md").read_text(encoding="utf-8").splitlines()
    assert lines[0] == f"# {name}"
    heads = [line for line in lines if line.startswith("## ")]
    assert heads == ["## Meaning", "## Impact", "## Diagnosis", "## What to do"]


RULE_KIND = ("--api-versions", "monitoring.coreos.com/v1/PrometheusRule")


def test_chart_installs_the_rules_with_the_prometheus_operator_alone() -> None:
    assert "PrometheusRule" not in {d["kind"] for d in rendered()}
    found = find_one(rendered(*RULE_KIND), "PrometheusRule")
    assert found["spec"] == yaml.safe_load(RULES.read_text(encoding="utf-8"))
    off = rendered(*RULE_KIND, "--set", "metrics.rules=false")
    assert "PrometheusRule" not in {d["kind"] for d in off}


def test_rules_of_the_chart_select_the_operator_of_the_release() -> None:
    flags = ("--namespace", "ml-platform", "--set", "metrics.gpuCelsius=85")
    groups = find_one(rendered(*flags, *RULE_KIND), "PrometheusRule")["spec"]["groups"]
    named = {r["alert"]: r for g in groups for r in g["rules"] if "alert" in r}
    expression = named["DDPOperatorNotLeading"]["expr"]
    assert expression == 'max by (namespace) (ddp_operator_leader{namespace="ml-platform"}) < 1'
    assert "ddp-system" not in str([g for g in groups if g["name"].endswith(".operator")])
    assert named["DDPGpuHot"]["expr"] == "ddp_gpu_temperature_celsius > 85"
    assert "hotter than 85 °C" in named["DDPGpuHot"]["annotations"]["summary"]


def test_chart_replaces_the_address_of_the_runbooks() -> None:
    flags = ("--set", "metrics.runbooks=https://wiki.example.com/ddp", *RULE_KIND)
    groups = find_one(rendered(*flags), "PrometheusRule")["spec"]["groups"]
    urls = {r["annotations"]["runbook_url"] for g in groups for r in g["rules"] if "alert" in r}
    assert "https://wiki.example.com/ddp/DDPJobFailed.md" in urls
    assert not [url for url in urls if url.startswith("docs/")]
