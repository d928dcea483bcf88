"""Derive the conditions that kstatus reads: Ready, Reconciling and Stalled.

Flux, kpt and others compute the state of an object from them. kstatus calls an object with
Reconciling InProgress, one with Stalled Failed, and any other one Current if Ready is True. The
conditions follow from the summary alone, so they change only in a status that is written anyway.
"""

from datetime import datetime

from ddp_operator.api.status import ConditionStatus, ConditionType, DDPJobStatus
from ddp_operator.reconcile.conditions import INVALID, RUNNING, SUSPENDED, set_condition

_DERIVED = (ConditionType.READY, ConditionType.RECONCILING, ConditionType.STALLED)


def with_kstatus_conditions(status: DDPJobStatus, now: datetime, generation: int) -> DDPJobStatus:
    """Return the status with the conditions that follow from its summary.

    Reconciling and Stalled are present only while they are True, as kstatus recommends.

    Args:
        status: Status of the job. Without a summary it gets no conditions.
        now: Time of a transition.
        generation: Generation of the spec that the conditions describe.
    """
    summary = status.condition(ConditionType.SUCCEEDED)
    if summary is None:
        return status
    true = _true_condition(status)
    for kind in _DERIVED:
        if kind is true or kind is ConditionType.READY:
            status = set_condition(
                status,
                kind,
                kind is true,
                summary.reason,
                summary.message,
                now=now,
                generation=generation,
            )
        elif status.condition(kind) is not None:
            kept = [c for c in status.conditions if c.type is not kind]
            status = status.model_copy(update={"conditions": kept})
    return status


def _true_condition(status: DDPJobStatus) -> ConditionType:
    """Return which of the derived conditions is True. The other two are not."""
    summary = status.condition(ConditionType.SUCCEEDED)
    if summary is None or summary.status is ConditionStatus.TRUE:
        return ConditionType.READY
    if summary.status is ConditionStatus.FALSE or summary.reason == INVALID:
        return ConditionType.STALLED
    # A suspended job is as its spec wants it once its pods have ended.
    suspended = summary.reason == SUSPENDED and status.is_true(ConditionType.SUSPENDED)
    if summary.reason == RUNNING or suspended:
        return ConditionType.READY
    return ConditionType.RECONCILING
