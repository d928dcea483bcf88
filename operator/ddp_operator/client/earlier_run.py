"""Resume a local run from the last run of the same job in the same folder.

A stopped local run is a suspended job, and the next run resumes the job: the attempt numbers
continue, and one goodput ledger covers all runs.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ddp_operator.api.init import InitStatus
from ddp_operator.api.job import DDPJob, parse_job
from ddp_operator.api.pod_policy import PodTemplatePolicy
from ddp_operator.api.status import Condition, ConditionStatus, ConditionType, DDPJobStatus
from ddp_operator.builders import names
from ddp_operator.builders.defaults import Defaults
from ddp_operator.builders.env import checkpoint_path
from ddp_operator.client.run_folder import EarlierRun
from ddp_operator.cluster.base import Manifest
from ddp_operator.reconcile.decide import decide
from ddp_operator.reconcile.lifecycle import is_finished
from ddp_operator.reconcile.pod_view import view_pod
from ddp_operator.reconcile.world import World

DEFAULTS = Defaults(
    image="none: the interpreter that runs this process",
    pod_template=PodTemplatePolicy.FULL,
)
"""Operator settings of a local run. Its pods are processes of the user, so they need no
isolation."""
KILLED = "the process of `ddpjob run` was killed"
"""Reason that ends a run whose process was killed before it could record a reason."""


def first_state(manifest: Manifest, earlier: EarlierRun | None, home: Path) -> Manifest:
    """Return the job, with its status, with which a new run begins.

    The new run continues an earlier run that has a checkpoint directory. Otherwise it continues
    only the attempt numbers, because the fence refuses a number that was used before.
    """
    metadata = {**manifest["metadata"], "creationTimestamp": None}
    fresh = {**manifest, "metadata": metadata, "status": {}}
    last = earlier.job if earlier is not None else None
    if earlier is None or last is None or last.metadata.uid != metadata["uid"]:
        return fresh
    directory = run_directory(parse_job(fresh), home)
    created = last.metadata.creation_timestamp
    if directory is None or not directory.is_dir() or created is None:
        return {**fresh, "status": {"attempt": last.status.attempt}}
    if is_finished(last.status):
        status = _resumable(last.status, earlier.written)
    else:
        status = stopped(earlier.manifest, earlier.written, KILLED)
    metadata = {**metadata, "creationTimestamp": created.isoformat()}
    return {**fresh, "metadata": metadata, "status": _as_json(status)}


def run_directory(job: DDPJob, home: Path) -> Path | None:
    """Return the checkpoint directory of a local run, or None for a job without checkpoints."""
    claim = names.claim_name(job)
    return None if claim is None else home / "volumes" / claim / checkpoint_path(job)


def stopped(
    manifest: Manifest, at: datetime, why: str, pods: Iterable[Manifest] = ()
) -> DDPJobStatus:
    """Return the status of an unfinished job whose pods are gone. The job is suspended.

    Args:
        manifest: The job.
        at: Time of the end.
        why: Reason for the end, as a sentence without its period.
        pods: The ended pods. Their termination messages name the last checkpoint.
    """
    job = parse_job({**manifest, "spec": {**manifest["spec"], "suspend": True}})
    recorded = {attempt.number for attempt in job.status.attempts}
    ended = decide(World(job, at, tuple(map(view_pod, pods))), DEFAULTS).status
    status = decide(World(job.model_copy(update={"status": ended}), at), DEFAULTS).status
    attempts = [
        attempt if attempt.number in recorded else attempt.model_copy(update={"message": why})
        for attempt in status.attempts
    ]
    conditions = [
        condition.model_copy(update={"message": f"{why}; run the same command again to resume"})
        if condition.type is ConditionType.SUCCEEDED
        else condition
        for condition in status.conditions
    ]
    return status.model_copy(update={"attempts": attempts, "conditions": conditions})


def finished_before(manifest: Manifest, earlier: EarlierRun | None) -> DDPJob | None:
    """Return the job of the last run if that run completed the training in the manifest.

    A `command` runs again, because only its program knows whether any work is left.
    """
    last = earlier.job if earlier is not None else None
    if last is None or not last.status.is_true(ConditionType.SUCCEEDED):
        return None
    wanted, checkpoint = parse_job({**manifest, "status": {}}), last.status.last_checkpoint
    same = wanted.metadata.uid == last.metadata.uid and wanted.spec == last.spec
    if not same or wanted.spec.task is None or checkpoint is None:
        return None
    progress = last.status.progress
    complete = progress is not None and progress.total_steps == checkpoint.step
    return last if complete and Path(checkpoint.path).is_dir() else None


def _resumable(status: DDPJobStatus, at: datetime) -> DDPJobStatus:
    """Return the status with which a finished job starts again. All its budgets are unused."""
    summary = Condition(
        type=ConditionType.SUCCEEDED,
        status=ConditionStatus.UNKNOWN,
        reason="Suspended",
        message="the earlier run has ended",
        last_transition_time=at.astimezone(UTC).replace(microsecond=0),
    )
    return DDPJobStatus(
        attempt=status.attempt,
        attempts=status.attempts,
        init=_with_unused_retries(status.init),
        goodput=status.goodput,
        progress=status.progress,
        last_checkpoint=status.last_checkpoint,
        conditions=[summary],
    )


def _with_unused_retries(init: InitStatus | None) -> InitStatus | None:
    """Return the progress of the init steps in which a step that is left has not failed yet."""
    if init is None or init.step is None:
        return init
    unused = {"tries": init.tries + 1, "failures": 0, "start_time": None, "message": None}
    return init.model_copy(update=unused)


def _as_json(status: DDPJobStatus) -> Mapping[str, Any]:
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)
