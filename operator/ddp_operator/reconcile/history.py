"""The attempts that have ended: the story of a run."""

from datetime import datetime

from ddp_operator.api.status import AttemptStatus, Cause, DDPJobStatus
from ddp_operator.reconcile.ladder import newest_step

_ATTEMPTS = 10
"""How many of them the status holds."""
_CHARACTERS = 256
"""What a sentence is cut to: whole it stands in lastFailure."""


def ended(
    status: DDPJobStatus, now: datetime, *, cause: Cause | None, reason: str, message: str
) -> DDPJobStatus:
    """The status, whose history tells that and why the current attempt is over."""
    told = {attempt.number for attempt in status.attempts}
    if status.attempt == 0 or status.attempt in told:
        return status
    attempt = AttemptStatus(
        number=status.attempt,
        start_time=status.attempt_start_time,
        end_time=now.replace(microsecond=0),
        cause=cause,
        reason=reason,
        message=message[:_CHARACTERS],
        start_step=status.attempt_start_step,
        end_step=newest_step(status),
    )
    return status.model_copy(update={"attempts": [*status.attempts, attempt][-_ATTEMPTS:]})
