"""Charge the end of an attempt to its budget, and decide whether another attempt follows.

The cause of the fault selects the budget: `maxRestarts` for the application, which may count in a
window of time, and `maxInfrastructureRestarts` for pods, nodes and volumes. A free end uses no
budget. Invalid input fails the job without a retry, and so do too many stalled attempts. The counts
are part of the status. The write that starts the next attempt also charges the last end, so a
restarted operator never charges an end twice.
"""

from datetime import datetime, timedelta

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import Cause, DDPJobStatus
from ddp_operator.reconcile.escalation import STALLED_LIMIT
from ddp_operator.reconcile.fault import Fault

_TIMES = 32
"""Maximum number of failure times in the status."""


def why_not_retried(job: DDPJob, status: DDPJobStatus, fault: Fault, now: datetime) -> str | None:
    """Return the reason why no attempt follows a fault, or None if another attempt follows.

    `status` must already count a stalled attempt, but must not yet contain the charge for the
    fault.
    """
    reason = _no_retry_reason(job, status, fault, now)
    return None if reason is None else f"(attempt {status.attempt} is not retried: {reason})"


def _no_retry_reason(job: DDPJob, status: DDPJobStatus, fault: Fault, now: datetime) -> str | None:
    if fault.permanent:
        return "exit code 2 means invalid input"
    spent = _spent_budget(job, status, fault.failure.cause, now)
    if spent is not None:
        return spent
    if not fault.free and status.stalled_attempts >= STALLED_LIMIT:
        return f"{status.stalled_attempts} attempts in a row saved no new step"
    return None


def charge(status: DDPJobStatus, cause: Cause, now: datetime) -> DDPJobStatus:
    """Return the status with one more restart charged to the budget of a cause."""
    if cause is Cause.FREE:
        return status.model_copy(update={"free_restarts": status.free_restarts + 1})
    if cause is Cause.INFRASTRUCTURE:
        count = status.infrastructure_restarts + 1
        return status.model_copy(update={"infrastructure_restarts": count})
    # The restart window uses the operator's clock, because the clocks of pods may differ.
    times = [*status.recent_failures, now.replace(microsecond=0)][-_TIMES:]
    return status.model_copy(update={"restarts": status.restarts + 1, "recent_failures": times})


def _spent_budget(job: DDPJob, status: DDPJobStatus, cause: Cause, now: datetime) -> str | None:
    """Return name and limit of the budget of a cause if no restart is left, or else None."""
    spec = job.spec
    if cause is Cause.FREE:
        return None
    if cause is Cause.INFRASTRUCTURE:
        most = spec.max_infrastructure_restarts
        is_spent = status.infrastructure_restarts >= most
        return f"maxInfrastructureRestarts is {most}" if is_spent else None
    window = spec.restart_window_seconds
    if window is None:
        is_spent = status.restarts >= spec.max_restarts
        return f"maxRestarts is {spec.max_restarts}" if is_spent else None
    since = now - timedelta(seconds=window)
    is_spent = sum(time > since for time in status.recent_failures) >= spec.max_restarts
    return f"maxRestarts is {spec.max_restarts} per {window} s" if is_spent else None
