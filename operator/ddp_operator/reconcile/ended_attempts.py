"""Record ended attempts in the status."""

from datetime import datetime

from ddp_operator.api.status import AttemptStatus, Cause, DDPJobStatus
from ddp_operator.reconcile.escalation import newest_step

_ATTEMPTS = 10
"""Maximum number of ended attempts in the status."""
_CHARACTERS = 256
"""Maximum length of a message, in characters. The whole message is in lastFailure."""


def with_ended_attempt(
    status: DDPJobStatus, now: datetime, *, cause: Cause | None, reason: str, message: str
) -> DDPJobStatus:
    """Return the status in which the end of the current attempt is recorded exactly once."""
    recorded = {attempt.number for attempt in status.attempts}
    if status.attempt == 0 or status.attempt in recorded:
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


def with_last_step(status: DDPJobStatus) -> DDPJobStatus:
    """Return the status in which the last ended attempt has its newest checkpoint.

    Pods that stop commit their last checkpoint after the attempt was recorded.
    """
    if not status.attempts or status.attempts[-1].number != status.attempt:
        return status
    last = status.attempts[-1].model_copy(update={"end_step": newest_step(status)})
    return status.model_copy(update={"attempts": [*status.attempts[:-1], last]})
