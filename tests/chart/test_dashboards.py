"""The dashboards of the chart: their queries, their panels and their ConfigMaps."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from ddp_agent.status import metrics as agent
from ddp_operator.reconcile.conditions import RUNNING, SUSPENDED
from ddp_operator.runtime import job_metrics, metrics
from ddp_wire.families import Family, Kind
from tests.chart.test_chart import rendered, template
from tests.chart.test_rules import promtool
from tests.harness.install import ROOT
from tools.dashboards import states
from tools.dashboards.build import build_dashboards
from tools.dashboards.frame import TAG, to_json
from tools.dashboards.panels import WIDTH
from tools.dashboards.queries import VALUES, panels, queries

TEXTS = build_dashboards()
DASHBOARDS: Mapping[str, dict[str, Any]] = {
    Path(name).stem.removeprefix("ddp-trainer-"): json.loads(text) for name, text in TEXTS.items()
}
FAMILIES = (*metrics.FAMILIES, *job_metrics.FAMILIES, *agent.FAMILIES)
FROM_SCRAPE = {"namespace", "pod"}
"""Labels that each series has from the scrape configuration."""
WORKER_FROM_SCRAPE = FROM_SCRAPE | {"node", "node_index", "ddpjob"}
LARGEST = 262_144
"""Maximum size of a ConfigMap for `kubectl apply`, which copies it into an annotation, in bytes."""

_SELECTOR = re.compile(r"\b([a-z_:]+)(?:\{([^}]*)\}|(?=\[|\s|\)|,|$))(?!\s*\()")
_WORDS = {"by", "on", "unless", "or", "and", "offset"}
_MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"')
every_dashboard = pytest.mark.parametrize("name", DASHBOARDS)


def declared() -> dict[str, set[str]]:
    """Return the labels of each series name."""
    return {
        name: {*family.labels, *scraped}
        for families, scraped in (
            ((*metrics.FAMILIES, *job_metrics.FAMILIES), FROM_SCRAPE),
            (agent.FAMILIES, WORKER_FROM_SCRAPE),
        )
        for family in families
        for name in names(family)
    }


def names(family: Family) -> set[str]:
    """Return the names of the series of a metric."""
    if family.kind is not Kind.HISTOGRAM:
        return {family.name}
    return {family.name + suffix for suffix in ("_bucket", "_sum", "_count")}


def selectors(expression: str) -> list[tuple[str, set[str]]]:
    """Return each metric of an expression with the labels that its matchers name."""
    plain = re.sub(r"\b(?:by|on) \([^)]*\)", "", expression)
    return [
        (found[1], set(_MATCHER.findall(found[2] or "")))
        for found in _SELECTOR.finditer(plain)
        if found[1] not in _WORDS
    ]


@every_dashboard
def test_every_query_names_declared_metrics_and_labels(name: str) -> None:
    known = declared()
    for expression in queries(DASHBOARDS[name]):
        found = selectors(expression)
        assert found, expression
        for metric, labels in found:
            assert metric in known, expression
            assert labels <= known[metric], expression


@every_dashboard
def test_every_query_groups_by_labels_of_its_metrics(name: str) -> None:
    known = declared()
    for expression in queries(DASHBOARDS[name]):
        lists = re.findall(r"\bby \(([^)]*)\)", expression)
        labels = {label.strip() for one in lists for label in one.split(",")} - {"le"}
        for metric, _ in selectors(expression):
            assert labels <= known[metric], expression


def test_search_finds_the_metrics_of_a_query() -> None:
    expression = 'sum by (le, x) (rate(a_bucket{b="c",d=~"e(f)"}[1m])) / max(g) or h'
    assert selectors(expression) == [("a_bucket", {"b", "d"}), ("g", set()), ("h", set())]


def test_dashboards_show_nearly_all_metrics() -> None:
    used = {m for one in DASHBOARDS.values() for q in queries(one) for m, _ in selectors(q)}
    unused = {family.name for family in FAMILIES if not names(family) & used}
    assert unused == {
        "ddpjob_status_condition",
        "ddpjob_pods_not_ready",
        "ddpjob_checkpoint_interval_seconds",
        "ddpjob_hang_limit_seconds",
        "ddpjob_start_timestamp_seconds",
        "ddpjob_completion_timestamp_seconds",
        "ddpjob_progress_timestamp_seconds",
        "ddp_train_updates_total",
        "ddp_train_cpu_seconds_total",
        "ddp_train_total_steps",
        "ddp_train_epoch",
        "ddp_train_checkpoint_timestamp_seconds",
        "ddp_train_checkpoint_interval_seconds",
        "ddp_train_checkpoint_unwritten_seconds",
    }


@every_dashboard
def test_every_panel_has_a_description_and_a_text_for_no_data(name: str) -> None:
    for panel in panels(DASHBOARDS[name]):
        defaults = panel["fieldConfig"]["defaults"]
        assert panel["title"]
        assert defaults["unit"], panel["title"]
        assert defaults["noValue"], panel["title"]
        assert panel["targets"], panel["title"]
        description = panel["description"]
        assert description.endswith("."), panel["title"]
        assert ". " not in description, f"{panel['title']}: more than one sentence"


@every_dashboard
def test_every_panel_fits_the_grid_and_has_its_own_number(name: str) -> None:
    dashboard = DASHBOARDS[name]
    cells: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= WIDTH, panel["title"]
        own = {
            (place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])
        }
        assert not own & cells, f"{panel['title']} covers another panel"
        cells |= own
    numbers = [panel["id"] for panel in dashboard["panels"]]
    assert numbers == list(range(1, len(numbers) + 1))


@every_dashboard
def test_every_query_uses_the_selected_data_source(name: str) -> None:
    dashboard = DASHBOARDS[name]
    [source] = [v for v in dashboard["templating"]["list"] if v["type"] == "datasource"]
    assert (source["name"], source["query"]) == ("datasource", "prometheus")
    selected = {"type": "prometheus", "uid": "${datasource}"}
    users = [*panels(dashboard), *dashboard["annotations"].get("list", [])]
    users += [target for panel in panels(dashboard) for target in panel["targets"]]
    users += [v for v in dashboard["templating"]["list"] if v["type"] == "query"]
    assert all(user["datasource"] == selected for user in users)


@every_dashboard
def test_dashboards_link_to_each_other(name: str) -> None:
    dashboard = DASHBOARDS[name]
    assert dashboard["uid"] == f"ddp-trainer-{name}"
    assert dashboard["tags"] == [TAG]
    [link] = dashboard["links"]
    assert (link["type"], link["tags"]) == ("dashboards", [TAG])
    assert link["keepTime"] is link["includeVars"] is True
    uids = {one["uid"] for one in DASHBOARDS.values()}
    linked = set(re.findall(r"/d/([\w-]+)\?", json.dumps(dashboard)))
    assert linked <= uids


def test_job_name_in_the_fleet_dashboard_opens_the_dashboard_of_the_job() -> None:
    text = json.dumps(DASHBOARDS["fleet"])
    parameters = "var-namespace=${__data.fields.namespace}&var-ddpjob=${__data.fields.ddpjob}"
    assert f"/d/ddp-trainer-job?{parameters}&" in text


@every_dashboard
def test_every_variable_has_a_value_for_tests(name: str) -> None:
    variables = {v["name"] for v in DASHBOARDS[name]["templating"]["list"]}
    assert variables - {"datasource"} <= VALUES.keys()
    assert not [q for q in queries(DASHBOARDS[name]) if "$" in q]
    given = queries(DASHBOARDS[name], {"namespace": "team-a", "operator_namespace": "team-a"})
    assert [q for q in given if '"team-a"' in q]


@every_dashboard
def test_dashboards_are_unchanged_after_a_round_trip_through_the_sdk(name: str) -> None:
    register_default_plugins()
    read = Dashboard.from_json(json.loads(TEXTS[f"ddp-trainer-{name}.json"]))
    assert to_json(read) == TEXTS[f"ddp-trainer-{name}.json"]


def test_colors_exist_for_every_status_in_the_operator() -> None:
    folder = ROOT / "operator" / "ddp_operator" / "reconcile"
    text = "".join(file.read_text(encoding="utf-8") for file in folder.glob("*.py"))
    for name, value in {"RUNNING": RUNNING, "SUSPENDED": SUSPENDED}.items():
        text = text.replace(f"return {name}", f'return "{value}"')
        text = text.replace(f"SUCCEEDED, None, {name}", f'SUCCEEDED, None, "{value}"')
    summary = re.findall(r'SUCCEEDED, None, "(\w+)"', text)
    summary += re.findall(r'succeeded=\w+, reason="(\w+)"', text)
    summary += re.findall(r'return "([A-Z][a-z]+)", ', text)
    assert set(summary) == states.COLORS.keys()


@pytest.mark.api
@every_dashboard
def test_promtool_accepts_every_query(name: str, tmp_path: Path) -> None:
    found = queries(DASHBOARDS[name])
    rules = [{"record": f"query:{number}", "expr": one} for number, one in enumerate(found)]
    file = tmp_path / "rules.yaml"
    document = {"groups": [{"name": name, "rules": rules}]}
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    promtool("check", "rules", "--lint=none", str(file))


@pytest.mark.api
def test_annotation_marks_each_attempt_once_and_ignores_scrape_gaps(tmp_path: Path) -> None:
    annotation, _ = DASHBOARDS["job"]["annotations"]["list"]
    [query] = [q for q in queries(DASHBOARDS["job"], {"__interval": "1m"}) if " unless " in q]
    assert " unless " in annotation["expr"]
    job = 'ddpjob_info{namespace="default",ddpjob="digits",'
    series = {
        job + 'attempt="0",image="a"}': "1x2 stale",
        job + 'attempt="1",image="a"}': "_x2 1x20 stale _x5 1x10 stale",
        job + 'attempt="2",image="a"}': "_x40 1x20",
    }
    marks = {2: "1", 40: "2"}
    tests = [
        {
            "expr": query,
            "eval_time": f"{minute}m",
            "exp_samples": [{"labels": f'{{attempt="{marks[minute]}"}}', "value": 1}]
            if minute in marks
            else [],
        }
        for minute in range(60)
    ]
    inputs = [{"series": name, "values": values} for name, values in series.items()]
    test = {"interval": "1m", "input_series": inputs, "promql_expr_test": tests}
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"tests": [test]}), encoding="utf-8")
    promtool("test", "rules", str(file))


def config_maps(*flags: str) -> list[dict[str, Any]]:
    return [document for document in rendered(*flags) if document["kind"] == "ConfigMap"]


@pytest.mark.api
def test_chart_installs_one_config_map_per_dashboard() -> None:
    found = config_maps()
    data = {key: text for one in found for key, text in one["data"].items()}
    assert data == TEXTS
    metadata = {one["metadata"]["name"]: one["metadata"] for one in found}
    assert metadata.keys() == {f"ddp-trainer-dashboard-{name}" for name in DASHBOARDS}
    for one in metadata.values():
        assert one["namespace"] == "ddp-system"
        assert one["labels"]["grafana_dashboard"] == "1"
        assert "annotations" not in one
    assert max(len(json.dumps(one)) for one in found) < LARGEST


@pytest.mark.api
def test_config_maps_have_the_configured_labels_annotations_and_namespace() -> None:
    values = "labels.grafana_dashboard=null", "labels.team=ml", "namespace=monitoring"
    flags = [flag for value in values for flag in ("--set", f"dashboards.{value}")]
    folder = ("--set-string", "dashboards.annotations.grafana_folder=Training")
    for found in config_maps(*flags, *folder):
        metadata = found["metadata"]
        assert metadata["labels"]["team"] == "ml"
        assert "grafana_dashboard" not in metadata["labels"]
        assert metadata["namespace"] == "monitoring"
        assert metadata["annotations"] == {"grafana_folder": "Training"}


@pytest.mark.api
def test_dashboards_can_be_disabled() -> None:
    assert config_maps("--set", "dashboards.enabled=false") == []


@pytest.mark.api
def test_dashboard_labels_that_are_no_text_are_rejected() -> None:
    result = template("--set", "dashboards.labels.grafana_dashboard=1")
    assert result.returncode != 0
    assert "dashboards/labels/grafana_dashboard" in result.stderr
