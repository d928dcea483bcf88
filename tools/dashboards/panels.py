"""Build panels. Each has a title, a unit, a description and a text for missing data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import (
    dashboard,
    prometheus,
    stat,
    statetimeline,
    timeseries,
)
from grafana_foundation_sdk.cog import variants
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE = common.DataSourceRef(type_val="prometheus", uid="${datasource}")
"""Prometheus data source that the variable `datasource` selects."""
WIDTH = 24
"""Number of columns of a dashboard."""
Panel = Builder[models.Panel]
_HEIGHT = 8


@dataclass(frozen=True)
class Text:
    """Texts of a panel that a reader sees."""

    title: str
    unit: str
    """Unit of the values, in Grafana's notation."""
    description: str
    """One sentence about the information in the panel."""
    empty: str
    """Text that the panel shows without data: the usual reason."""


@dataclass(frozen=True)
class Query:
    """One PromQL expression, and the name of its series in Grafana's notation."""

    expression: str
    legend: str = ""


def time_series(
    text: Text,
    *queries: Query,
    width: int = 8,
    height: int = _HEIGHT,
    bars: bool = False,
    stacked: bool = False,
    top: float | None = None,
    colors: Mapping[str, str] | None = None,
    links: Sequence[dashboard.DashboardLink] = (),
) -> Panel:
    """Return a panel of lines over time, or of stacked bars or areas.

    Args:
        text: Title, unit, description and text without data.
        queries: Expressions.
        width: Columns of the dashboard.
        height: Rows of the dashboard.
        bars: Whether to draw stacked bars.
        stacked: Whether to draw stacked areas.
        top: End of the axis; by default the highest value.
        colors: Colors by the name of a series.
        links: Links of the values.
    """
    panel = timeseries.Panel().title(text.title).description(text.description)
    panel.unit(text.unit).no_value(text.empty).datasource(SOURCE).span(width).height(height)
    panel.targets(targets(queries)).min(0).thresholds(thresholds("green"))
    legend = common_builders.VizLegendOptions().show_legend(True)
    legend.display_mode(common.LegendDisplayMode.LIST).placement(common.LegendPlacement.BOTTOM)
    tooltip = common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI)
    panel.legend(legend.calcs([])).tooltip(tooltip.sort(common.SortOrder.DESCENDING))
    panel.line_width(1).fill_opacity(8).show_points(common.VisibilityMode.AUTO)
    if bars or stacked:
        stacking = common_builders.StackingConfig().mode(common.StackingMode.NORMAL).group("A")
        panel.fill_opacity(80).stacking(stacking)
    if bars:
        panel.draw_style(common.GraphDrawStyle.BARS)
    if top is not None:
        panel.max(top)
    for name, color in (colors or {}).items():
        panel.override_by_name(name, [fixed_color(color)])
    return panel.data_links(list(links)) if links else panel


def free_scale(panel: Panel) -> Panel:
    """Return a copy of a panel whose axis need not begin at 0."""
    config = panel.build().field_config
    assert config is not None
    config.defaults.min_val = None
    return panel


def values(
    text: Text,
    *queries: Query,
    width: int = 4,
    colors: Mapping[str, str] | None = None,
    limits: Sequence[tuple[float, str]] = (),
    mode: common.BigValueTextMode = common.BigValueTextMode.AUTO,
    decimals: int | None = None,
) -> Panel:
    """Return a panel that shows the newest values as large text.

    Args:
        text: Title, unit, description and text without data.
        queries: Expressions.
        width: Columns of the dashboard.
        colors: Colors by the name of a series.
        limits: Limits from which a value has another color.
        mode: Whether to show the value, the name of the series or both.
        decimals: Digits after the point. An increase of a counter is an estimate with a fraction.
    """
    panel = stat.Panel().title(text.title).description(text.description)
    panel.unit(text.unit).no_value(text.empty).datasource(SOURCE).span(width).height(4)
    panel.targets(targets(queries, instant=True)).text_mode(mode)
    panel.thresholds(thresholds("text" if not limits else "green", limits))
    panel.graph_mode(common.BigValueGraphMode.NONE).color_mode(common.BigValueColorMode.VALUE)
    panel.reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]))
    if decimals is not None:
        panel.decimals(decimals)
    for name, color in (colors or {}).items():
        panel.override_by_name(name, [fixed_color(color)])
    return panel


def timeline(text: Text, query: Query, *, width: int, colors: Mapping[str, str]) -> Panel:
    """Return a panel with one bar per series, for the time in which the series exists."""
    panel = statetimeline.Panel().title(text.title).description(text.description)
    panel.unit(text.unit).no_value(text.empty).datasource(SOURCE).span(width).height(_HEIGHT)
    panel.targets(targets([query])).thresholds(thresholds("green"))
    panel.show_value(common.VisibilityMode.NEVER).merge_values(True).fill_opacity(80)
    panel.legend(common_builders.VizLegendOptions().show_legend(False))
    for name, color in colors.items():
        panel.override_by_name(name, [fixed_color(color)])
    return panel


def targets(
    queries: Sequence[Query], *, instant: bool = False, as_table: bool = False
) -> list[Builder[variants.Dataquery]]:
    """Return a panel's queries in the SDK's form."""
    found: list[Builder[variants.Dataquery]] = []
    for place, query in enumerate(queries):
        target = prometheus.Dataquery().expr(query.expression).datasource(SOURCE)
        target.ref_id(chr(ord("A") + place)).legend_format(query.legend)
        target.format(PromQueryFormat.TABLE if as_table else PromQueryFormat.TIME_SERIES)
        found.append(target.instant() if instant else target.range())
    return found


def thresholds(base: str, limits: Sequence[tuple[float, str]] = ()) -> dashboard.ThresholdsConfig:
    """Return the colors of values: one color below all limits, and one from each limit on."""
    steps = [models.Threshold(None, base), *(models.Threshold(*limit) for limit in limits)]
    return dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)


def fixed_color(color: str) -> models.DynamicConfigValue:
    """Return a Grafana setting that gives a series a fixed color."""
    return models.DynamicConfigValue("color", {"mode": "fixed", "fixedColor": color})
