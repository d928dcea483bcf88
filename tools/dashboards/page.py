"""Build the documentation page about all dashboards from the descriptions of their panels."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_TEXT = """\
# Dashboards

This page is generated from the dashboards in `charts/dashboards/`. [Monitoring](../operate/monitoring.md#dashboards) describes how Grafana
finds them. Each panel shows its sentence as a tooltip, and without data the usual reason why there is none."""  # noqa: E501
_READERS = {
    "ddp-trainer-fleet": "For an administrator of the cluster.",
    "ddp-trainer-job": "For the owner of a job. Orange lines are starts of attempts, red ones are"
    " failures.",
    "ddp-trainer-operator": "For an administrator of the operator.",
}


def build_dashboards_page(dashboards: Sequence[Mapping[str, Any]]) -> str:
    """Return the page as Markdown, from the JSON of each dashboard."""
    return "\n\n".join([_TEXT, *map(_section, dashboards)]) + "\n"


def _section(dashboard: Mapping[str, Any]) -> str:
    title = dashboard["title"].rpartition("/ ")[2]
    labels = [variable["label"] for variable in dashboard["templating"]["list"]]
    reader = _READERS[dashboard["uid"]]
    text = f"{dashboard['description']} {reader} Variables: {', '.join(labels)}."
    lines = ["| row | panel | what it shows |", "| --- | --- | --- |", *_rows(dashboard["panels"])]
    return "\n".join([f"## {title}", text, "", *lines])


def _rows(panels: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Return one table line per panel. The first panel of a row includes the row's title."""
    row = ""
    for panel in panels:
        if panel["type"] == "row":
            row = panel["title"]
        else:
            yield f"| {row} | {panel['title']} | {panel['description']} |"
            row = ""
