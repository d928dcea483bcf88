"""Build the frame of a dashboard: variables, links, rows of panels, and the JSON."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.common import TimeZoneBrowser

from ddp_wire.families import Family
from tools.dashboards.panels import SOURCE, Panel
from tools.dashboards.promql import series

TAG = "ddp-trainer"
JOB_UID = "ddp-trainer-job"
Variable = Builder[models.VariableModel]


@dataclass(frozen=True)
class Row:
    """A row of a dashboard: a heading and the panels below it."""

    title: str
    panels: Sequence[Panel]


def source_variable() -> Variable:
    """Return the variable that selects one of Grafana's Prometheus data sources."""
    return dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")


def label_variable(
    name: str, title: str, family: Family, label: str, scope: str = "", *, several: bool
) -> Variable:
    """Return a dashboard variable with the values of a label.

    Args:
        name: Name of the variable.
        title: Title that a reader sees.
        family: Metric whose series carry the label.
        label: Name of the label.
        scope: PromQL matchers that select the series.
        several: Whether several values may be selected. Then all values are selected by default.
    """
    query = f"label_values({series(family, scope)}, {label})"
    variable = dashboard.QueryVariable(name).label(title).datasource(SOURCE)
    variable.query({"query": query, "refId": name}).definition(query)
    variable.refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
    variable.sort(models.VariableSort.NATURAL_ASC).multi(several).include_all(several)
    if several:
        # `.*` also matches series without the label.
        variable.all_value(".*").current(models.VariableOption(True, "All", "$__all"))
    return variable


def build(
    uid: str,
    title: str,
    description: str,
    *,
    variables: Sequence[Variable],
    rows: Sequence[Row],
    annotations: Sequence[dashboard.AnnotationQuery] = (),
) -> models.Dashboard:
    """Return a dashboard. Number its panels in their order."""
    links = dashboard.DashboardLink("ddp-trainer").type(models.DashboardLinkType.DASHBOARDS)
    links.tags([TAG]).icon("external link").keep_time(True).include_vars(True)
    builder = dashboard.Dashboard(title).uid(uid).description(description).tags([TAG])
    builder.time("now-3h", "now").refresh("30s").timezone(TimeZoneBrowser).link(links)
    builder.tooltip(models.DashboardCursorSync.CROSSHAIR).variables(list(variables))
    builder.annotations(list(annotations))
    for row in rows:
        builder.with_row(dashboard.Row(row.title))
        for panel in row.panels:
            builder.with_panel(panel)
    found = builder.build()
    for number, placed in enumerate(found.panels or (), start=1):
        placed.id_val = number
    return found


def to_json(document: models.Dashboard) -> str:
    """Return the JSON of a dashboard, with sorted keys."""
    plain = _without_placement(json.loads(JSONEncoder().encode(document)))
    return json.dumps(plain, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _without_placement(value: Any) -> Any:
    """Return a dashboard whose links and annotations stay beside the variables.

    The SDK would move them into a menu of newer Grafana versions.
    """
    if isinstance(value, list):
        return [_without_placement(one) for one in value]
    if not isinstance(value, dict):
        return value
    menu = ("placement", models.DashboardLinkPlacement.IN_CONTROLS_MENU)
    return {key: _without_placement(one) for key, one in value.items() if (key, one) != menu}


def job_link(title: str, parameters: str) -> dashboard.DashboardLink:
    """Return a link from a value to the dashboard of its job."""
    common = "${datasource:queryparam}&${__url_time_range}"
    return dashboard.DashboardLink(title).url(f"/d/{JOB_UID}?{parameters}&{common}")
