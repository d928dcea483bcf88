"""Correct the cause of the last attempt's end when the failed pod's status arrives late.

The peers of a pod that runs out of memory fail within milliseconds. The kubelet may report the end
of the pod seconds later, when the operator has already charged the fault to the infrastructure.
"""

from dataclasses import replace

from ddp_operator.api.status import Cause, DDPJobStatus
from ddp_operator.reconcile import budgets, lifecycle
from ddp_operator.reconcile.fault import Fault
from ddp_operator.reconcile.faults import ended_pod
from ddp_operator.reconcile.plan import Event, EventType, Plan
from ddp_operator.reconcile.pod_view import PodView
from ddp_operator.reconcile.root_cause import PEER_LOST
from ddp_operator.reconcile.world import World


def correct(world: World) -> Plan | None:
    """Return a plan that charges the last attempt's end to its true cause, or None."""
    fault = _late_fault(world)
    if fault is None:
        return None
    status, failure = _uncharged(world.job.status, fault), fault.failure
    text = f"attempt {failure.attempt} ended because {failure.message} (reported late)"
    why_not = budgets.why_not_retried(world.job, status, fault, world.now)
    if why_not is not None:
        message = f"{failure.message} {why_not}"
        return lifecycle.finish(world, status, succeeded=False, reason="Failed", message=message)
    status = budgets.charge(status, failure.cause, world.now)
    event = Event(EventType.WARNING, failure.reason, text)
    return Plan(status, events=(event,), requeue_seconds=0)


def _late_fault(world: World) -> Fault | None:
    """Return the fault of the pod that ended the last attempt, if the application caused it."""
    status = world.job.status
    blamed = status.last_failure
    if blamed is None or blamed.reason != PEER_LOST or blamed.attempt != status.attempt - 1:
        return None
    pod = next((pod for pod in world.pods if pod.name == blamed.pod), None)
    if pod is None or not _ended_in(world, pod, blamed.attempt):
        return None
    before = status.model_copy(update={"attempt": blamed.attempt})
    fault = ended_pod(replace(world, job=world.job.model_copy(update={"status": before})), pod)
    if fault is None or fault.secondary or fault.failure.cause is not Cause.APPLICATION:
        return None
    return fault


def _ended_in(world: World, pod: PodView, attempt: int) -> bool:
    """Return whether a pod ended in an earlier attempt."""
    end = pod.termination
    if end is None or world.ended_here(pod):
        return False
    if end.final is not None:
        return end.final.attempt == attempt
    first = pod.first_attempt
    return first.isascii() and first.isdigit() and int(first[:9]) <= attempt


def _uncharged(status: DDPJobStatus, fault: Fault) -> DDPJobStatus:
    """Return the status with the true cause, which is not yet charged to any budget."""
    failure = fault.failure
    truth = {"cause": failure.cause, "reason": failure.reason, "message": failure.message[:256]}
    attempts = [
        one.model_copy(update=truth) if one.number == failure.attempt else one
        for one in status.attempts
    ]
    return status.model_copy(
        update={
            "last_failure": failure,
            "attempts": attempts,
            "infrastructure_restarts": max(0, status.infrastructure_restarts - 1),
        }
    )
