"""Build the dashboard about the operator."""

from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models

from ddp_operator.runtime import metrics
from tools.dashboards.frame import Row, build, label_variable, source_variable
from tools.dashboards.panels import Panel, Query, Text, time_series, values
from tools.dashboards.promql import (
    OPERATORS,
    increase,
    newest,
    quantile,
    rate,
)

_EMPTY = "No operator, or it is not scraped"
_POD = "{{pod}}"


def operator() -> models.Dashboard:
    """Return the dashboard about the operator."""
    in_namespace = 'namespace=~"$operator_namespace"'
    return build(
        "ddp-trainer-operator",
        "ddp-trainer / Operator",
        "The operator itself: its replicas, reconciles, requests and agents.",
        variables=[
            source_variable(),
            label_variable(
                "operator_namespace", "Namespace of the operator", metrics.BUILD, "namespace",
                several=True,
            ),
            label_variable(
                "operator", "Replica", metrics.BUILD, "pod", in_namespace, several=True
            ),
        ],
        rows=[
            Row("Replicas", [_leader(), _build(), _agents_now(), _attempts()]),
            Row("Reconciles", [_reconciles(), _durations(), _depth(), _oldest()]),
            Row("API server", [_requests(), _request_durations()]),
            Row("Process", [_lag(), _agents(), _notifications()]),
        ],
    )  # fmt: skip


def _leader() -> Panel:
    text = Text(
        "Leader",
        "none",
        "Which replica acts on jobs; without one, no job starts and none recovers.",
        "No leader",
    )
    query = Query(f"{newest(metrics.LEADER, OPERATORS, 'pod')} == 1", _POD)
    return values(text, query, width=6, mode=common.BigValueTextMode.NAME)


def _build() -> Panel:
    text = Text("Version", "none", "Which version of ddp-trainer the replicas run.", _EMPTY)
    query = Query(newest(metrics.BUILD, OPERATORS, "version"), "{{version}}")
    return values(text, query, width=6, mode=common.BigValueTextMode.NAME)


def _agents_now() -> Panel:
    text = Text(
        "Agents now",
        "short",
        "How many agents of active jobs answer the operator, and how many are silent.",
        _EMPTY,
    )
    query = Query(_count_agents(), "{{state}}")
    mode = common.BigValueTextMode.VALUE_AND_NAME
    return values(text, query, width=6, colors={"silent": "orange"}, mode=mode)


def _count_agents() -> str:
    return f"sum by (state) ({newest(metrics.AGENTS, OPERATORS, 'pod, state')})"


def _attempts() -> Panel:
    text = Text(
        "Attempts ended in this time",
        "short",
        "How many attempts ended, by cause; the cause is None after a completed run or an exceeded"
        " deadline.",
        "No attempt ended",
    )
    query = Query(increase(metrics.ATTEMPTS, OPERATORS, "cause", window="$__range"), "{{cause}}")
    mode = common.BigValueTextMode.VALUE_AND_NAME
    return values(text, query, width=6, mode=mode, decimals=0)


def _reconciles() -> Panel:
    text = Text(
        "Reconciles by result",
        "ops",
        "How often the operator reconciles jobs; a steady rate of errors needs a look at its log.",
        _EMPTY,
    )
    return time_series(text, Query(rate(metrics.RECONCILES, OPERATORS, "result"), "{{result}}"))


def _durations() -> Panel:
    text = Text(
        "Reconcile duration", "s", "How long the operator takes for one job.", "No reconciles"
    )
    family = metrics.RECONCILE_SECONDS
    return time_series(
        text,
        Query(quantile(0.5, family, OPERATORS), "p50"),
        Query(quantile(0.9, family, OPERATORS), "p90"),
        Query(quantile(0.99, family, OPERATORS), "p99"),
    )


def _depth() -> Panel:
    text = Text(
        "Queue depth",
        "short",
        "How many jobs wait for a free worker; if it stays above 0, the operator needs more"
        " workers.",
        _EMPTY,
    )
    return time_series(text, Query(newest(metrics.QUEUE_DEPTH, OPERATORS, "pod"), _POD), width=4)


def _oldest() -> Panel:
    text = Text(
        "Longest wait in the queue",
        "s",
        "By how much reconciles are late because all workers are busy.",
        _EMPTY,
    )
    return time_series(text, Query(newest(metrics.QUEUE_OLDEST, OPERATORS, "pod"), _POD), width=4)


def _requests() -> Panel:
    text = Text(
        "Requests by verb and code",
        "reqps",
        "What the operator asks the API server for, and which requests fail; the code is 0 without"
        " a response.",
        _EMPTY,
    )
    query = Query(rate(metrics.REQUESTS, OPERATORS, "verb, code"), "{{verb}} {{code}}")
    return time_series(text, query, width=12)


def _request_durations() -> Panel:
    text = Text(
        "Request duration", "s", "How long the API server takes to answer the operator.",
        "No requests",
    )  # fmt: skip
    family = metrics.REQUEST_SECONDS
    return time_series(
        text,
        Query(quantile(0.5, family, OPERATORS, "verb"), "{{verb}} p50"),
        Query(quantile(0.99, family, OPERATORS, "verb"), "{{verb}} p99"),
        width=12,
    )


def _lag() -> Panel:
    text = Text(
        "Event loop lag",
        "s",
        "By how much the operator's event loop is late; a high p99 means that it lacks CPU.",
        _EMPTY,
    )
    return time_series(
        text,
        Query(quantile(0.5, metrics.LAG, OPERATORS, "pod"), "{{pod}} p50"),
        Query(quantile(0.99, metrics.LAG, OPERATORS, "pod"), "{{pod}} p99"),
        width=12,
    )


def _agents() -> Panel:
    text = Text(
        "Agents by state",
        "short",
        "When agents were silent; the operator then recovers their jobs later.",
        _EMPTY,
    )
    query = Query(_count_agents(), "{{state}}")
    return time_series(text, query, width=12, colors={"silent": "orange"})


def _notifications() -> Panel:
    text = Text(
        "Notifications by result",
        "short",
        "How many notifications the webhook received, and how many were given up or dropped.",
        _EMPTY,
    )
    query = Query(increase(metrics.NOTIFICATIONS, OPERATORS, "result"), "{{result}}")
    colors = {"failed": "orange", "dropped": "red"}
    return time_series(text, query, width=12, bars=True, colors=colors)
