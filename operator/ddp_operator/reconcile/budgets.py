"""What the end of an attempt costs, and whether another one may follow it."""

from datetime import datetime, timedelta

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import Cause, DDPJobStatus
from ddp_operator.reconcile.attempts import Loss
from ddp_operator.reconcile.ladder import STALLED_LIMIT

_TIMES = 32
"""How many times of failures the status holds."""


def why_no_more(job: DDPJob, status: DDPJobStatus, loss: Loss, now: datetime) -> str | None:
    """Why no attempt may follow the one that a loss ended; None when one may.

    `status` has counted the attempt as stalled already, if it was, but charged no budget yet.
    """
    if loss.permanent:
        return "(not retried)"
    spent = _spent(job, status, loss.failure.cause, now)
    if spent is not None:
        return f"(attempt {status.attempt}, {spent})"
    if not loss.free and status.stalled_attempts >= STALLED_LIMIT:
        return f"({status.stalled_attempts} attempts in a row without a newly saved step)"
    return None


def charged(status: DDPJobStatus, cause: Cause, now: datetime) -> DDPJobStatus:
    """The status once an attempt that ended for a cause is followed by another one."""
    if cause is Cause.FREE:
        return status.model_copy(update={"free_restarts": status.free_restarts + 1})
    if cause is Cause.INFRASTRUCTURE:
        count = status.infrastructure_restarts + 1
        return status.model_copy(update={"infrastructure_restarts": count})
    # By this clock, since the window is measured by it: pods may have any other.
    times = [*status.recent_failures, now.replace(microsecond=0)][-_TIMES:]
    return status.model_copy(update={"restarts": status.restarts + 1, "recent_failures": times})


def _spent(job: DDPJob, status: DDPJobStatus, cause: Cause, now: datetime) -> str | None:
    """The budget of a cause, when nothing is left of it."""
    spec = job.spec
    if cause is Cause.FREE:
        return None
    if cause is Cause.INFRASTRUCTURE:
        most = spec.max_infrastructure_restarts
        is_spent = status.infrastructure_restarts >= most
        return f"maxInfrastructureRestarts {most}" if is_spent else None
    window = spec.restart_window_seconds
    if window is None:
        is_spent = status.restarts >= spec.max_restarts
        return f"maxRestarts {spec.max_restarts}" if is_spent else None
    since = now - timedelta(seconds=window)
    is_spent = sum(time > since for time in status.recent_failures) >= spec.max_restarts
    return f"maxRestarts {spec.max_restarts} within {window} s" if is_spent else None
