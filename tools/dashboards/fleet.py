"""Build the dashboard about all jobs."""

from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models

from ddp_agent.status import metrics as agent
from ddp_operator.runtime import job_metrics as jobs
from ddp_operator.runtime import metrics as operator
from tools.dashboards import states
from tools.dashboards.frame import (
    Row,
    build,
    job_link,
    label_variable,
    source_variable,
)
from tools.dashboards.panels import Panel, Query, Text, time_series, values
from tools.dashboards.promql import (
    JOBS,
    RANGE_WINDOW,
    aggregate,
    increase,
    most,
    newest,
    quantile,
    series,
)
from tools.dashboards.tables import LabelColumn, ValueColumn, rows

_KEY = "namespace, ddpjob"
_NO_JOBS = "No jobs in these namespaces"
_NO_GPUS = "No GPUs, or the worker pods are not scraped"
_NO_RECOVERY = "No recovery in this time"
_RARE_WINDOW = "1h"
"""PromQL window for the rates of rare events."""
_RECOVERY_HEIGHT = 10
"""Height at which the table shows all phases of a recovery."""
_JOB_NAME = "{{namespace}}/{{ddpjob}}"


def fleet() -> models.Dashboard:
    """Return the dashboard about all jobs."""
    # Every job has this metric, also one without a status.
    namespace = label_variable("namespace", "Namespace", jobs.NODES, "namespace", several=True)
    return build(
        "ddp-trainer-fleet",
        "ddp-trainer / Fleet",
        "All jobs: their state, progress, restarts and GPU use.",
        variables=[source_variable(), namespace],
        rows=[
            Row("Jobs", [_by_state(), _nodes(), _gpus(), _table(), _by_state_over_time()]),
            Row("Restarts and recovery", [_restarts(), _recovery_time(), _recovery_parts()]),
            Row("GPUs", [_gpu_use(), _gpu_memory(), _gpu_power()]),
        ],
    )


def _count_by_state() -> str:
    return aggregate("count", "state", newest(jobs.STATE, JOBS, f"{_KEY}, state"))


def _by_state() -> Panel:
    text = Text(
        "Jobs by STATUS",
        "short",
        "How many jobs have each STATUS of kubectl get ddpjobs now.",
        _NO_JOBS,
    )
    mode = common.BigValueTextMode.VALUE_AND_NAME
    query = Query(_count_by_state(), "{{state}}")
    return values(text, query, width=12, colors=states.COLORS, mode=mode)


def _nodes() -> Panel:
    text = Text(
        "Nodes",
        "short",
        "How many worker pods the jobs ask for, and in how many the ranks train.",
        _NO_JOBS,
    )
    return values(
        text,
        Query(aggregate("sum", "", newest(jobs.READY, JOBS, _KEY)), "training"),
        Query(aggregate("sum", "", newest(jobs.NODES, JOBS, _KEY)), "asked for"),
        width=6,
    )


def _gpus() -> Panel:
    text = Text(
        "GPUs of jobs",
        "short",
        "How many GPUs the worker pods hold, and how many of them computed at least half of the"
        " time.",
        _NO_GPUS,
    )
    use = series(agent.GPU_USE, JOBS)
    return values(
        text,
        Query(f"count({use})", "held"),
        Query(f"count({use} >= 0.5)", "busy"),
        width=6,
    )


def _by_state_over_time() -> Panel:
    text = Text(
        "Jobs by STATUS over time", "short", "How the number of jobs in each STATUS changes.",
        _NO_JOBS,
    )  # fmt: skip
    return time_series(
        text, Query(_count_by_state(), "{{state}}"), width=24, stacked=True, colors=states.COLORS
    )


def _table() -> Panel:
    text = Text(
        "All jobs",
        "none",
        "STATUS, progress and restarts of each job; its name opens the dashboard of the job.",
        _NO_JOBS,
    )
    link = job_link(
        "Open the job",
        "var-namespace=${__data.fields.namespace}&var-ddpjob=${__data.fields.ddpjob}",
    )
    labels = [
        LabelColumn("namespace", "Namespace"),
        LabelColumn("ddpjob", "Job", link=link),
        LabelColumn("state", "STATUS", colors=states.COLORS),
    ]
    step, total = newest(jobs.STEP, JOBS, _KEY), newest(jobs.TOTAL_STEPS, JOBS, _KEY)
    restarts = aggregate("sum", _KEY, newest(jobs.RESTARTS, JOBS, f"{_KEY}, cause"))
    columns = [
        ValueColumn("", newest(jobs.STATE, JOBS, f"{_KEY}, state")),
        ValueColumn("Progress", f"{step} / {total}", "percentunit", bar=True),
        ValueColumn("Training loss", newest(jobs.LOSS, JOBS, _KEY)),
        ValueColumn("Samples/s", newest(jobs.THROUGHPUT, JOBS, _KEY), "short"),
        ValueColumn("Training nodes", newest(jobs.READY, JOBS, _KEY), "short"),
        ValueColumn("Nodes", newest(jobs.NODES, JOBS, _KEY), "short"),
        ValueColumn("Restarts", restarts, "short"),
    ]
    return rows(text, labels, columns, sort="Job", height=12)


def _restarts() -> Panel:
    text = Text(
        "Restarts by cause",
        "short",
        "When jobs restarted, and whether the application, the infrastructure or a request such as"
        " a preemption caused it.",
        _NO_JOBS,
    )
    query = Query(increase(jobs.RESTARTS, JOBS, "cause"), "{{cause}}")
    return time_series(text, query, height=_RECOVERY_HEIGHT, bars=True)


def _recovery_time() -> Panel:
    text = Text(
        "Recovery time",
        "s",
        "How long jobs of all namespaces took from a fault to the next update, within an hour.",
        _NO_RECOVERY,
    )
    first_step = 'part="firstStep"'
    family = operator.RECOVERY_SECONDS
    return time_series(
        text,
        Query(quantile(0.5, family, first_step, window=_RARE_WINDOW), "p50"),
        Query(quantile(0.9, family, first_step, window=_RARE_WINDOW), "p90"),
        height=_RECOVERY_HEIGHT,
    )


def _recovery_parts() -> Panel:
    text = Text(
        "Recovery by part",
        "s",
        "Seconds from a fault until each part of the recovery had ended on all nodes, for all"
        " namespaces: the largest step from one row to the next takes most of the time.",
        _NO_RECOVERY,
    )
    family, window = operator.RECOVERY_SECONDS, RANGE_WINDOW
    counts = series(family, suffix="_count", window=window)
    columns = [
        ValueColumn("p50", quantile(0.5, family, "", "part", window=window), "s"),
        ValueColumn("p90", quantile(0.9, family, "", "part", window=window), "s"),
        ValueColumn("Recoveries", f"sum by (part) (increase({counts}))", "short", decimals=0),
    ]
    part = LabelColumn("part", "Part")
    return rows(text, [part], columns, sort="p50", width=8, height=_RECOVERY_HEIGHT)


def _gpu_use() -> Panel:
    text = Text(
        "GPU utilization by job",
        "percentunit",
        "How much of the time the GPUs of each job compute, on average over its GPUs.",
        _NO_GPUS,
    )
    used = most(aggregate("avg", _KEY, series(agent.GPU_USE, JOBS)))
    return time_series(text, Query(used, _JOB_NAME), top=1)


def _gpu_memory() -> Panel:
    text = Text(
        "GPU memory by job",
        "percentunit",
        "Which part of the memory of its GPUs each job uses.",
        _NO_GPUS,
    )
    used = aggregate("sum", _KEY, series(agent.GPU_MEMORY, JOBS))
    size = aggregate("sum", _KEY, series(agent.GPU_MEMORY_SIZE, JOBS))
    return time_series(text, Query(most(f"{used} / {size}"), _JOB_NAME), top=1)


def _gpu_power() -> Panel:
    text = Text("GPU power by job", "watt", "Electric power of all GPUs of each job.", _NO_GPUS)
    power = most(aggregate("sum", _KEY, series(agent.GPU_POWER, JOBS)))
    return time_series(text, Query(power, _JOB_NAME))
