"""Metrics of all jobs, read from their statuses at the time of a scrape.

So the series of a job end with the job. They are built from JSON documents, because parsing a
thousand jobs into models would take seconds.
"""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

from prometheus_client import Metric
from prometheus_client.registry import Collector
from pydantic.alias_generators import to_camel

from ddp_operator.api.goodput import Bucket
from ddp_operator.cluster.base import Manifest
from ddp_wire import node_ranges
from ddp_wire.exposition import Samples
from ddp_wire.families import Family, Kind

_JOB = ("namespace", "ddpjob")

INFO = Family(
    "ddpjob_info", Kind.GAUGE, "Current attempt and image of the job, as labels. Always 1.",
    (*_JOB, "attempt", "image"),
)  # fmt: skip
STATE = Family(
    "ddpjob_state", Kind.GAUGE,
    "STATUS of the job, as `kubectl get ddpjobs` shows it, in the label state. Always 1.",
    (*_JOB, "state"),
)  # fmt: skip
CONDITION = Family(
    "ddpjob_status_condition", Kind.GAUGE,
    "Status of each condition of the job, in the label status: true, false or unknown. Always 1.",
    (*_JOB, "condition", "status"),
)  # fmt: skip
NOT_READY = Family(
    "ddpjob_pods_not_ready", Kind.GAUGE,
    "Reason for which the pods of the job do not train, as in its condition PodsReady, for example"
    " Unschedulable. Absent while all of them train. Always 1.", (*_JOB, "reason"),
)  # fmt: skip
NODES = Family("ddpjob_nodes", Kind.GAUGE, "Worker pods that the job asks for.", _JOB)
READY = Family("ddpjob_nodes_ready", Kind.GAUGE, "Worker pods whose ranks train.", _JOB)
MEMBERS = Family(
    "ddpjob_members", Kind.GAUGE,
    "Nodes of the current attempt. An elastic job may have fewer nodes than spec.nodes.", _JOB,
)  # fmt: skip
RESIZES = Family("ddpjob_resizes_total", Kind.COUNTER, "Changes of the members of the job.", _JOB)
RESIZE_TIME = Family(
    "ddpjob_last_resize_seconds", Kind.GAUGE,
    "Seconds from the decision on the last change of the members until all ranks had completed an"
    " update. Absent during a change.", _JOB,
)  # fmt: skip
RESTARTS = Family(
    "ddpjob_restarts_total", Kind.COUNTER,
    "Attempts that followed a fault, by its cause: Application, Infrastructure or Free.",
    (*_JOB, "cause"),
)  # fmt: skip
STRAGGLER = Family(
    "ddpjob_straggler_ratio", Kind.GAUGE,
    "Time that a slow rank needs for its data and forward pass, as a multiple of the time of the"
    " median rank. Absent if no rank is slow.",
    (*_JOB, "rank", "pod", "node", "part"),
)  # fmt: skip
LAST_FAILURE = Family(
    "ddpjob_last_failure_timestamp_seconds", Kind.GAUGE,
    "Time of the failure that ended the last failed attempt, with its reason, for example Hung, and"
    " with its pod, Kubernetes node and rank as far as known.",
    (*_JOB, "reason", "pod", "node", "rank"),
)  # fmt: skip
START = Family(
    "ddpjob_start_timestamp_seconds", Kind.GAUGE,
    "Time at which the operator started or resumed the job.", _JOB,
)  # fmt: skip
COMPLETION = Family(
    "ddpjob_completion_timestamp_seconds", Kind.GAUGE,
    "Time at which the job completed or failed.", _JOB,
)  # fmt: skip
STEP = Family("ddpjob_step", Kind.GAUGE, "Completed updates of the run.", _JOB)
TOTAL_STEPS = Family("ddpjob_total_steps", Kind.GAUGE, "Updates of the whole run.", _JOB)
PROGRESS_TIME = Family(
    "ddpjob_progress_timestamp_seconds", Kind.GAUGE, "Time of the newest progress report.", _JOB
)
LOSS = Family("ddpjob_loss", Kind.GAUGE, "Newest training loss.", _JOB)
THROUGHPUT = Family(
    "ddpjob_samples_per_second", Kind.GAUGE,
    "Newest throughput of all ranks together, in samples per second.", _JOB,
)  # fmt: skip
CHECKPOINT_TIME = Family(
    "ddpjob_checkpoint_timestamp_seconds", Kind.GAUGE,
    "Time of the newest committed checkpoint.", _JOB,
)  # fmt: skip
CHECKPOINT_INTERVAL = Family(
    "ddpjob_checkpoint_interval_seconds", Kind.GAUGE,
    "everySeconds of spec.checkpoint, or the interval that the trainer chose, or 0 without both."
    " Absent for a job without spec.checkpoint, and for a command that has reported no checkpoint.",
    _JOB,
)  # fmt: skip
HANG_LIMIT = Family(
    "ddpjob_hang_limit_seconds", Kind.GAUGE,
    "The longest of the limits that the job sets in spec.hang, or 0 without one.", _JOB,
)  # fmt: skip
TIME = Family(
    "ddpjob_time_seconds_total", Kind.COUNTER,
    "Wall-clock time of the job by bucket of its goodput ledger: queued, starting, restoring,"
    " training, data_wait, checkpoint_stall, redone, hang, recovering, exiting or suspended.",
    (*_JOB, "bucket"),
)  # fmt: skip
REDONE_STEPS = Family(
    "ddpjob_redone_steps_total", Kind.COUNTER,
    "Updates that the job repeated, because an earlier attempt had done them already.", _JOB,
)  # fmt: skip

FAMILIES = (
    INFO, STATE, CONDITION, NOT_READY, NODES, READY, MEMBERS, RESIZES, RESIZE_TIME, RESTARTS,
    STRAGGLER, LAST_FAILURE, START, COMPLETION, STEP, TOTAL_STEPS, PROGRESS_TIME, LOSS, THROUGHPUT,
    CHECKPOINT_TIME, CHECKPOINT_INTERVAL, HANG_LIMIT, TIME, REDONE_STEPS,
)  # fmt: skip
"""Declarations of all metrics about jobs."""

_RESTARTS = {
    "Application": "restarts",
    "Infrastructure": "infrastructureRestarts",
    "Free": "freeRestarts",
}


class JobCollector(Collector):
    """Collector of the metrics of all jobs that the operator knows."""

    def __init__(self, jobs: Callable[[], Sequence[Manifest]]) -> None:
        """Create a collector. A thread calls `jobs`, which returns all jobs."""
        self._jobs = jobs

    def collect(self) -> Iterable[Metric]:
        """Return the current metrics of all jobs."""
        samples = Samples(FAMILIES)
        for job in self._jobs():
            # A user who may write statuses may write nonsense. It must not hide the other jobs.
            with contextlib.suppress(
                ArithmeticError, AttributeError, LookupError, TypeError, ValueError
            ):
                _add_job(samples, job)
        return samples.metrics()


def _add_job(samples: Samples, job: Manifest) -> None:
    """Add the metrics of one job.

    Raises:
        Exception: The status has values that the operator never writes.
    """
    metadata = job["metadata"]
    own = (metadata["namespace"], metadata["name"])
    samples.add(NODES, job.get("spec", {}).get("nodes", 1), *own)
    status = job.get("status")
    if status:
        _add_status(samples, own, status)
        _add_progress(samples, own, status)
        _add_limits(samples, own, job["spec"], status)
        _add_goodput(samples, own, status.get("goodput"))


def _add_status(samples: Samples, own: tuple[str, str], status: dict[str, Any]) -> None:
    samples.add(INFO, 1, *own, status.get("attempt", 0), status.get("pods", {}).get("image", ""))
    for condition in status.get("conditions", []):
        kind = condition["type"]
        samples.add(CONDITION, 1, *own, kind, condition["status"].lower())
        if kind == "Succeeded":
            samples.add(STATE, 1, *own, condition["reason"])
        if kind == "PodsReady" and condition["status"] != "True":
            samples.add(NOT_READY, 1, *own, condition["reason"])
    samples.add(READY, int(status.get("ready", "0").split("/")[0]), *own)
    _add_members(samples, own, status)
    for cause, field in _RESTARTS.items():
        samples.add(RESTARTS, status.get(field, 0), *own, cause)
    slow = status.get("straggler")
    if slow:
        where = (str(slow.get(name, "")) for name in ("rank", "pod", "node", "part"))
        samples.add(STRAGGLER, float(slow["ratio"]), *own, *where)
    failure = status.get("lastFailure")
    if failure:
        where = (str(failure.get(name, "")) for name in ("reason", "pod", "node", "rank"))
        samples.add(LAST_FAILURE, _seconds(failure.get("time")), *own, *where)
    samples.add(START, _seconds(status.get("startTime")), *own)
    samples.add(COMPLETION, _seconds(status.get("completionTime")), *own)


def _add_members(samples: Samples, own: tuple[str, str], status: dict[str, Any]) -> None:
    members, last = status.get("members"), status.get("lastResize", {})
    samples.add(MEMBERS, len(node_ranges.from_text(members)) if members else None, *own)
    samples.add(RESIZES, status.get("resizes", 0), *own)
    milliseconds = last.get("milliseconds")
    samples.add(RESIZE_TIME, None if milliseconds is None else milliseconds / 1000, *own)


def _add_progress(samples: Samples, own: tuple[str, str], status: dict[str, Any]) -> None:
    progress = status.get("progress", {})
    loss = progress.get("loss")
    samples.add(STEP, progress.get("step"), *own)
    samples.add(TOTAL_STEPS, progress.get("totalSteps"), *own)
    samples.add(PROGRESS_TIME, _seconds(progress.get("time")), *own)
    samples.add(LOSS, None if loss is None else float(loss), *own)
    samples.add(THROUGHPUT, progress.get("samplesPerSecond"), *own)
    samples.add(CHECKPOINT_TIME, _seconds(status.get("lastCheckpoint", {}).get("time")), *own)


def _add_limits(
    samples: Samples, own: tuple[str, str], spec: dict[str, Any], status: dict[str, Any]
) -> None:
    """Add the job's settings that alerts use as their limits."""
    checkpoint = spec.get("checkpoint")
    # A command may save without a report to the operator.
    if checkpoint is not None and ("task" in spec or "lastCheckpoint" in status):
        chosen = status.get("lastCheckpoint", {}).get("intervalSeconds", 0)
        samples.add(CHECKPOINT_INTERVAL, checkpoint.get("everySeconds", chosen), *own)
    hang = (spec.get("hang") or {}).items()
    limits = [value for key, value in hang if key.endswith("Seconds")]
    samples.add(HANG_LIMIT, max(limits, default=0), *own)


def _add_goodput(samples: Samples, own: tuple[str, str], goodput: dict[str, Any] | None) -> None:
    if goodput is None:
        return
    for bucket in Bucket:
        samples.add(TIME, goodput.get(to_camel(bucket.field), 0) / 1000, *own, bucket)
    samples.add(REDONE_STEPS, goodput.get("redoneSteps", 0), *own)


def _seconds(time: str | None) -> float | None:
    """Return a timestamp of the API server as Unix seconds."""
    return None if time is None else datetime.fromisoformat(time).timestamp()
