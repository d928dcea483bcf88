"""Attempts that end without progress, and what is replaced because of them."""

from collections.abc import Iterable
from datetime import datetime

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import Cause, DDPJobStatus, StrikeStatus
from ddp_operator.builders import names
from ddp_operator.reconcile.attempts import Loss

STALLED_LIMIT = 3
"""That many attempts in a row without progress fail the job: the ladder has no more rungs."""

_STRIKES = 32
"""How many nodes the status remembers."""


def noted(status: DDPJobStatus) -> DDPJobStatus:
    """The status, which forgets stalled attempts as soon as a step has been saved in this one."""
    if not status.stalled_attempts or not _has_saved(status):
        return status
    return status.model_copy(update={"stalled_attempts": 0})


def climbed(
    job: DDPJob, status: DDPJobStatus, loss: Loss, losses: Iterable[Loss], now: datetime
) -> DDPJobStatus:
    """The status once a loss ended the current attempt; `losses` are all that were found."""
    status = noted(status)
    if loss.free or _has_saved(status) or not _tells_of_saving(job, status):
        return status
    status = status.model_copy(update={"stalled_attempts": status.stalled_attempts + 1})
    blamed = [one for one in losses if not one.secondary and not one.free]
    nodes = {one.failure.node for one in blamed if one.failure.node is not None}
    return _struck(status, nodes, now)


def pods_to_replace(job: DDPJob, status: DDPJobStatus) -> frozenset[str]:
    """Names of the pods that are not told of the current attempt in place, but made anew for it.

    A function of the status alone, so that an operator that dies in between goes on with it. A pod
    that was made for the attempt carries its number, by which it is told from the one before it.
    """
    failure = status.last_failure
    if failure is None or failure.attempt != status.attempt - 1 or failure.cause is Cause.FREE:
        return frozenset()
    if status.stalled_attempts == 0:
        return frozenset()
    if status.stalled_attempts == 1:
        return frozenset({failure.pod} if failure.pod else ())
    return frozenset(names.pod_name(job, index) for index in range(job.spec.nodes))


def newest_step(status: DDPJobStatus) -> int | None:
    """The newest saved update, as far as is known."""
    return status.last_checkpoint.step if status.last_checkpoint else None


def _has_saved(status: DDPJobStatus) -> bool:
    """Whether the current attempt has committed a checkpoint.

    One of a smaller number is new too: the run went back behind a checkpoint that was not whole.
    """
    newest = newest_step(status)
    return newest is not None and newest != status.attempt_start_step


def _tells_of_saving(job: DDPJob, status: DDPJobStatus) -> bool:
    """Whether silence about checkpoints means that there are none.

    Commands may save without a word: of them it is known once they have told of one.
    """
    tells = job.spec.task is not None or status.last_checkpoint is not None
    return job.spec.checkpoint is not None and tells


def _struck(status: DDPJobStatus, nodes: set[str], now: datetime) -> DDPJobStatus:
    counts = {strike.node: strike.count for strike in status.strikes}
    others = [strike for strike in status.strikes if strike.node not in nodes]
    time = now.replace(microsecond=0)
    new = [
        StrikeStatus(node=node, count=counts.get(node, 0) + 1, last_time=time)
        for node in sorted(nodes)
    ]
    return status.model_copy(update={"strikes": [*others, *new][-_STRIKES:]})
