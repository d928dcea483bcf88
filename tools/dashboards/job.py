"""Build the dashboard about one job: its frame, and the panels about its status."""

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models

from ddp_agent.status import metrics as agent
from ddp_operator.runtime import job_metrics as jobs
from tools.dashboards import job_training, job_workers, states
from tools.dashboards.frame import (
    JOB_UID,
    Row,
    build,
    label_variable,
    source_variable,
)
from tools.dashboards.panels import SOURCE, Panel, Query, Text, time_series, timeline, values
from tools.dashboards.promql import JOB, age, newest, series

_EMPTY = "No such job, or the operator is not scraped"
_NO_PROGRESS = "No progress reported yet"


def job() -> models.Dashboard:
    """Return the dashboard about one job."""
    in_namespace = 'namespace="$namespace"'
    variables = [
        source_variable(),
        label_variable("namespace", "Namespace", jobs.NODES, "namespace", several=False),
        label_variable("ddpjob", "Job", jobs.NODES, "ddpjob", in_namespace, several=False),
        label_variable("node", "Kubernetes node", agent.INFO, "node", JOB, several=True),
    ]
    status = [
        _status(), _attempt(), _nodes(), _progress(), _time_left(), _restarts(),
        _steps(), _status_over_time(), _checkpoint_age(),
    ]  # fmt: skip
    return build(
        JOB_UID,
        "ddp-trainer / Job",
        "One job: its status, training, ranks, nodes and GPUs.",
        variables=variables,
        rows=[
            Row("Status", status),
            Row("Training", job_training.results()),
            Row("Where the time goes", job_training.times()),
            Row("Ranks", job_workers.ranks()),
            Row("Nodes", job_workers.nodes()),
            Row("GPUs", job_workers.gpus()),
        ],
        annotations=[_attempts(), _failures()],
    )


def _attempts() -> dashboard.AnnotationQuery:
    """Return one mark at the start of each attempt.

    An attempt is new if it had no series in the 10 minutes before. So a failed scrape or a replaced
    operator does not look like a new attempt.
    """
    own = f'{JOB},attempt!="0"'
    past = f"last_over_time({series(jobs.INFO, own, window='10m')} offset $__interval)"
    query = f"{newest(jobs.INFO, own, 'attempt')} unless max by (attempt) ({past})"
    annotation = dashboard.AnnotationQuery().name("Attempts").datasource(SOURCE).expr(query)
    annotation.enable(True).hide(False).icon_color("orange").step("15s")
    return annotation.title_format("Attempt {{attempt}}").text_format("starts")


def _failures() -> dashboard.AnnotationQuery:
    """Return one mark at the time of each failure, with its reason, pod and node."""
    query = f"{newest(jobs.LAST_FAILURE, JOB, 'reason, pod, node, rank')} * 1000"
    annotation = dashboard.AnnotationQuery().name("Failures").datasource(SOURCE).expr(query)
    annotation.enable(True).hide(False).icon_color("red").step("15s").use_value_for_time(True)
    return annotation.title_format("{{reason}}").text_format("rank {{rank}} {{pod}} {{node}}")


def _status() -> Panel:
    text = Text("STATUS", "none", "What the job does now, as kubectl get ddpjobs shows it.", _EMPTY)
    query = Query(newest(jobs.STATE, JOB, "state"), "{{state}}")
    return values(text, query, colors=states.COLORS, mode=common.BigValueTextMode.NAME)


def _attempt() -> Panel:
    text = Text("Attempt", "none", "How many times the ranks have been started.", _EMPTY)
    query = Query(newest(jobs.INFO, JOB, "attempt"), "{{attempt}}")
    return values(text, query, mode=common.BigValueTextMode.NAME)


def _nodes() -> Panel:
    text = Text(
        "Nodes",
        "short",
        "How many worker pods the job asks for, and in how many the ranks train.",
        _EMPTY,
    )
    return values(
        text,
        Query(newest(jobs.READY, JOB), "training"),
        Query(newest(jobs.NODES, JOB), "asked for"),
    )


def _progress() -> Panel:
    text = Text("Progress", "percentunit", "Which part of its updates the run has completed.",
                _NO_PROGRESS)  # fmt: skip
    return values(text, Query(f"{newest(jobs.STEP, JOB)} / {newest(jobs.TOTAL_STEPS, JOB)}"))


def _time_left() -> Panel:
    text = Text(
        "Time left", "s", "When the run ends at its present speed.",
        "No estimate, or the worker pods are not scraped",
    )  # fmt: skip
    return values(text, Query(newest(agent.ETA, JOB)))


def _restarts() -> Panel:
    text = Text(
        "Restarts",
        "short",
        "How many attempts followed a fault, by cause; each cause has its own budget.",
        _EMPTY,
    )
    query = Query(newest(jobs.RESTARTS, JOB, "cause"), "{{cause}}")
    return values(text, query, mode=common.BigValueTextMode.VALUE_AND_NAME)


def _steps() -> Panel:
    text = Text(
        "Progress against the total",
        "short",
        "How many updates are completed and saved; a drop of the first line is the work that a"
        " restart repeats.",
        _NO_PROGRESS,
    )
    return time_series(
        text,
        Query(newest(jobs.STEP, JOB), "completed"),
        Query(newest(agent.CHECKPOINT_STEP, JOB), "in the newest checkpoint"),
        Query(newest(agent.MIRROR_STEP, JOB), "in the mirror"),
        Query(newest(jobs.TOTAL_STEPS, JOB), "total"),
    )


def _status_over_time() -> Panel:
    text = Text(
        "STATUS over time", "none", "When the job ran, and when it waited or recovered.", _EMPTY
    )
    query = Query(newest(jobs.STATE, JOB, "state"), "{{state}}")
    return timeline(text, query, width=8, colors=states.COLORS)


def _checkpoint_age() -> Panel:
    text = Text(
        "Age of the newest checkpoint",
        "s",
        "How much training time a fault would lose now.",
        "No checkpoint committed yet",
    )
    return time_series(
        text,
        Query(age(jobs.CHECKPOINT_TIME, JOB), "age"),
        Query(newest(agent.MIRROR_BEHIND, JOB), "mirror behind"),
    )
