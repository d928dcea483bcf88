"""Derive from a job's status what the operator announces: its end, its failure, a recovery.

The notifications follow from the newest status, not from a change of it. So a restarted operator
finds those that its predecessor may not have sent. The id of a notification depends only on what
happened, so the receiver recognizes one that it gets twice.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from ddp_operator.api.job import DDPJob
from ddp_operator.api.recovery import RecoveryStatus
from ddp_operator.api.status import ConditionType
from ddp_operator.api.summary import shortened, summarize


class NotificationType(StrEnum):
    """What happened to a job."""

    COMPLETED = "ddpjob.completed"
    """The job completed."""
    FAILED = "ddpjob.failed"
    """The job failed for good, or is invalid until a user edits it."""
    RECOVERED = "ddpjob.recovered"
    """The ranks train again after a fault."""


@dataclass(frozen=True)
class Notification:
    """One thing that happened to a job."""

    id: str
    """Unique id. It has no `.`, which separates the parts of a signature."""
    time: datetime
    """Time at which it happened."""
    body: bytes
    """Description as JSON."""


def find_notifications(job: DDPJob, *, now: datetime, age: timedelta) -> list[Notification]:
    """Return what happened to a job within the last time.

    Args:
        job: The job with its newest status.
        now: Current time.
        age: Maximum age of a notification.
    """
    return [one for one in _notifications(job, now) if one.time >= now - age]


def _notifications(job: DDPJob, now: datetime) -> Iterator[Notification]:
    status = job.status
    recovery = status.last_recovery
    if recovery is not None and recovery.complete:
        facts = {"recovery": _recovery(job, recovery)}
        time = min(now, _end_of(recovery))
        yield _notification(job, NotificationType.RECOVERED, f"{recovery.attempt}", time, facts)
    if status.completion_time is not None:
        kind = NotificationType.FAILED
        if status.is_true(ConditionType.SUCCEEDED):
            kind = NotificationType.COMPLETED
        yield _notification(job, kind, "end", status.completion_time)
    elif (stalled := status.condition(ConditionType.STALLED)) is not None:
        generation = status.observed_generation or 0
        time = stalled.last_transition_time
        yield _notification(job, NotificationType.FAILED, f"invalid-{generation}", time)


def _end_of(recovery: RecoveryStatus) -> datetime:
    """Return when a recovery ended. Its times come from agents, which are not trusted."""
    try:
        return recovery.time + timedelta(milliseconds=recovery.first_step_milliseconds or 0)
    except OverflowError:
        return recovery.time


def _recovery(job: DDPJob, recovery: RecoveryStatus) -> dict[str, Any]:
    """Return the facts about a recovery."""
    facts = {
        "attempt": recovery.attempt,
        "fault": shortened(recovery.fault),
        "faultTime": _text(recovery.time),
        "milliseconds": recovery.first_step_milliseconds,
    }
    if recovery.attempt == job.status.attempt:
        facts["resumedFromStep"] = job.status.resumed_from_step
    return {name: value for name, value in facts.items() if value is not None}


def _notification(
    job: DDPJob,
    kind: NotificationType,
    occurrence: str,
    time: datetime,
    facts: dict[str, Any] | None = None,
) -> Notification:
    identity = f"{job.metadata.uid}/{kind}/{occurrence}"
    summary = summarize(job).model_dump(mode="json", by_alias=True, exclude_none=True)
    document = {
        "type": kind,
        "timestamp": _text(time),
        "data": {"namespace": job.metadata.namespace, "job": summary, **(facts or {})},
    }
    body = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    return Notification(f"msg_{hashlib.sha256(identity.encode()).hexdigest()[:32]}", time, body)


def _text(time: datetime) -> str:
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z")
