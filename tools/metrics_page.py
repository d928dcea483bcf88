"""Build the documentation page about all metrics from their declarations."""

from collections.abc import Iterable

from ddp_agent.status import metrics as agent
from ddp_operator.runtime import job_metrics, metrics
from ddp_wire.families import Family

_TEXT = """\
# Metrics

This page is generated from the declarations in the code. All endpoints serve the text format of
Prometheus without authentication.

| endpoint | what it has |
| --- | --- |
| `http://OPERATOR-POD:8080/metrics` | metrics of the operator and of all jobs; a replica that stands by has no jobs |
| `http://WORKER-POD:8470/metrics` | metrics of the ranks and GPUs of that pod, also for a job that sets `command` |

The series of a job end when the job is deleted, and those of a rank when its pod is. `ddpjob` is the
name of the job. [Monitoring](../operate/monitoring.md#metrics) describes how Prometheus scrapes them."""  # noqa: E501
_SECTIONS = {
    "Operator": metrics.FAMILIES,
    "Jobs, from the operator": job_metrics.FAMILIES,
    "Worker pods, from their agents": agent.FAMILIES,
}


def build_metrics_page() -> str:
    """Return the page as Markdown."""
    sections = [f"## {title}\n\n{_table(families)}" for title, families in _SECTIONS.items()]
    return "\n\n".join([_TEXT, *sections]) + "\n"


def _table(families: Iterable[Family]) -> str:
    rows = [
        f"| `{one.name}` | {one.kind} | {', '.join(one.labels)} | {one.help} |" for one in families
    ]
    return "\n".join(["| metric | type | labels | meaning |", "| --- | --- | --- | --- |", *rows])
