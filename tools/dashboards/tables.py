"""Table panels: one row per label set, with labels and values as columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard, table
from grafana_foundation_sdk.models import dashboard as models

from tools.dashboards.panels import (
    SOURCE,
    WIDTH,
    Panel,
    Query,
    Text,
    targets,
    thresholds,
)


@dataclass(frozen=True)
class LabelColumn:
    """A table column that shows a label."""

    label: str
    title: str
    link: dashboard.DashboardLink | None = None
    colors: Mapping[str, str] = field(default_factory=dict)
    """Colors of the label's values."""


@dataclass(frozen=True)
class ValueColumn:
    """A table column that shows the value of an expression."""

    title: str
    """Title of the column. Empty for an expression that only adds a label."""
    expression: str
    unit: str = "none"
    bar: bool = False
    """Whether to draw the value, from 0 to 1, as a bar."""
    decimals: int | None = None
    """Number of digits after the decimal point."""


def rows(
    text: Text,
    labels: Sequence[LabelColumn],
    columns: Sequence[ValueColumn],
    *,
    sort: str,
    width: int = WIDTH,
    height: int = 8,
) -> Panel:
    """Return a table whose rows are sorted by the column `sort` in ascending order."""
    panel = table.Panel().title(text.title).description(text.description)
    panel.unit(text.unit).no_value(text.empty).datasource(SOURCE).span(width).height(height)
    panel.thresholds(thresholds("text"))
    found = [Query(column.expression) for column in columns]
    panel.targets(targets(found, instant=True, as_table=True))
    panel.with_transformation(models.DataTransformerConfig("merge", options={}))
    panel.with_transformation(_organize(labels, columns))
    for label in labels:
        panel.override_by_name(label.label, _label_properties(label))
    for column in columns:
        if column.title:
            panel.override_by_name(column.title, _column_properties(column))
    order = common_builders.TableSortByFieldState().display_name(sort).desc(False)
    return panel.sort_by([order])


def _organize(
    labels: Sequence[LabelColumn], columns: Sequence[ValueColumn]
) -> models.DataTransformerConfig:
    """Return the transformation that orders, names and hides the columns."""
    names = [f"Value #{chr(ord('A') + place)}" for place in range(len(columns))]
    shown = dict(zip(names, (column.title for column in columns), strict=True))
    order = [*(label.label for label in labels), *names]
    options = {
        "excludeByName": {"Time": True} | {name: True for name in names if not shown[name]},
        "indexByName": {name: place for place, name in enumerate(order)},
        "renameByName": {name: title for name, title in shown.items() if title},
    }
    return models.DataTransformerConfig("organize", options=options)


def _label_properties(column: LabelColumn) -> list[models.DynamicConfigValue]:
    properties = [models.DynamicConfigValue("displayName", column.title)]
    if column.link is not None:
        properties.append(models.DynamicConfigValue("links", [column.link.build().to_json()]))
    if column.colors:
        colors = {value: {"color": color} for value, color in column.colors.items()}
        mapping = {"type": "value", "options": colors}
        properties.append(models.DynamicConfigValue("mappings", [mapping]))
        properties.append(models.DynamicConfigValue("custom.cellOptions", {"type": "color-text"}))
    return properties


def _column_properties(column: ValueColumn) -> list[models.DynamicConfigValue]:
    properties = [models.DynamicConfigValue("unit", column.unit)]
    if column.decimals is not None:
        properties.append(models.DynamicConfigValue("decimals", column.decimals))
    if column.bar:
        options = {"type": "gauge", "mode": "basic", "valueDisplayMode": "text"}
        properties.append(models.DynamicConfigValue("custom.cellOptions", options))
        properties.append(models.DynamicConfigValue("min", 0))
        properties.append(models.DynamicConfigValue("max", 1))
    return properties
