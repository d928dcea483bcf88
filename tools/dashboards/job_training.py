"""Build the panels about one job's training: its results and the use of its time."""

from collections.abc import Sequence

from ddp_agent.status import metrics as agent
from ddp_operator.runtime import job_metrics as jobs
from ddp_wire.families import Family
from tools.dashboards.panels import Panel, Query, Text, free_scale, time_series
from tools.dashboards.promql import JOB, WORKERS, aggregate, newest, quantile, rate, series

_EMPTY = "No updates yet, or the worker pods are not scraped"
_NO_TIMES = "No measured updates in this time"
_NO_LEDGER = "No such job, or the operator is not scraped"


def results() -> Sequence[Panel]:
    """Return the panels about the training results, for example the loss."""
    throughput = Text(
        "Throughput", "suffix: samples/s",
        "How many samples all ranks together train on per second.", _EMPTY,
    )  # fmt: skip
    return [
        _loss(),
        _one("Learning rate", "How the schedule changes the learning rate.", agent.LEARNING_RATE),
        _one(
            "Gradient norm",
            "Whether the gradients stay bounded; a sudden rise often precedes a bad training loss.",
            agent.GRAD_NORM,
        ),
        time_series(
            throughput, Query(_either(agent.THROUGHPUT, jobs.THROUGHPUT), "samples/s"), width=12
        ),
        _evaluation(),
    ]


def times() -> Sequence[Panel]:
    """Return the panels about how the ranks use their time."""
    return [
        _update_duration(),
        _shares(),
        _phases(),
        _allreduce(),
        _ledger(),
        _redone_steps(),
    ]


def _loss() -> Panel:
    text = Text("Training loss", "none", "Whether training still improves.", "No loss reported yet")
    total = Query(_either(agent.LOSS, jobs.LOSS), "training loss")
    parts = Query(newest(agent.LOSS_PART, JOB, "part"), "part {{part}}")
    return free_scale(time_series(text, total, parts))


def _either(family: Family, late: Family) -> str:
    """Return a query for the value from the worker pods, or else from the operator."""
    return f"{newest(family, JOB)} or {newest(late, JOB)}"


def _one(title: str, description: str, family: Family) -> Panel:
    query = Query(newest(family, JOB), title.lower())
    return time_series(Text(title, "none", description, _EMPTY), query)


def _evaluation() -> Panel:
    text = Text(
        "Evaluation",
        "none",
        "How the results of the evaluations change.",
        "No evaluation yet, or the worker pods are not scraped",
    )
    query = Query(newest(agent.EVALUATION, JOB, "metric"), "{{metric}}")
    return free_scale(time_series(text, query, width=12))


def _update_duration() -> Panel:
    text = Text(
        "Update duration",
        "s",
        "How long an update takes, and whether some take much longer than most.",
        _NO_TIMES,
    )
    family = agent.UPDATE_DURATION
    return time_series(
        text,
        Query(quantile(0.5, family, WORKERS), "p50"),
        Query(quantile(0.99, family, WORKERS), "p99"),
    )


def _shares() -> Panel:
    text = Text(
        "Time without training",
        "percentunit",
        "Which part of the updates the ranks wait for data, and which part of all time goes to"
        " checkpoints and evaluations.",
        _NO_TIMES,
    )
    updates = rate(agent.UPDATE_SECONDS, WORKERS)
    waits = f"{rate(agent.DATA_WAIT, WORKERS)} / ({updates} > 0)"
    return time_series(
        text,
        Query(waits, "wait for data"),
        Query(rate(agent.CHECKPOINT_SECONDS, WORKERS, operator="avg"), "checkpoints"),
        Query(rate(agent.EVALUATION_SECONDS, WORKERS, operator="avg"), "evaluations"),
    )


def _ledger() -> Panel:
    text = Text(
        "Wall-clock time of the job",
        "s",
        "Where all time since the creation of the job went; each second is in one bucket.",
        _NO_LEDGER,
    )
    query = Query(newest(jobs.TIME, JOB, "bucket"), "{{bucket}}")
    return time_series(text, query, stacked=True)


def _redone_steps() -> Panel:
    text = Text(
        "Redone updates",
        "short",
        "How many updates the run repeated, because an earlier attempt had done them already.",
        _NO_LEDGER,
    )
    return time_series(text, Query(newest(jobs.REDONE_STEPS, JOB), "redone"))


def _phases() -> Panel:
    text = Text(
        "Phases of an update",
        "s",
        "How long each phase of the newest measured update took, on average over the ranks.",
        "No phases measured",
    )
    phases = aggregate("avg", "phase", series(agent.PHASE_SECONDS, WORKERS))
    return time_series(text, Query(phases, "{{phase}}"))


def _allreduce() -> Panel:
    text = Text(
        "All-reduce of the gradients",
        "s",
        "How long the all-reduce of an update takes, and in which part of it the backward pass"
        " still computed; in the rest the ranks only wait.",
        "No measured updates in this time, or the strategy is fsdp2",
    )
    return time_series(
        text,
        Query(newest(agent.ALLREDUCE, JOB), "all-reduce"),
        Query(newest(agent.ALLREDUCE_OVERLAP, JOB), "during the backward pass"),
    )
