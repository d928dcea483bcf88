"""Read a pod's Events to find out why it does not start, if its status shows no reason.

A missing Secret of a volume or an error of the network plugin is in no field of the pod. The
operator reads the Events of one pod per job, at growing intervals. The interval continues when
another pod becomes the first waiting one, because the pods of a large job start one after another.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from ddp_operator.cluster.base import ClusterError
from ddp_operator.limits import EVENT_READS
from ddp_operator.reconcile.conditions import is_stuck
from ddp_operator.reconcile.pod_view import PodView
from ddp_operator.reconcile.world import World

_log = logging.getLogger(__name__)

_FIRST_READ = timedelta(seconds=EVENT_READS.first)
_LONGEST_INTERVAL = timedelta(seconds=EVENT_READS.longest)
_UNSEEN = "NotScheduled: no scheduler has considered the pod, as with an unknown schedulerName"

Read = Callable[[str, str], Awaitable[str | None]]
"""Function that returns the newest warning about the pod with a uid, or None."""


@dataclass(frozen=True)
class _Finding:
    uid: str
    text: str | None
    read: datetime
    interval: timedelta


class PodWarnings:
    """Newest warning about one waiting pod of a job."""

    __slots__ = ("_found", "_read")

    def __init__(self, read: Read) -> None:
        self._read = read
        self._found: _Finding | None = None

    def added_to(self, pods: Sequence[PodView]) -> tuple[PodView, ...]:
        """Return the pods. Add the warning, if one is known, to the waiting pod."""
        found = self._found
        if found is None or found.text is None:
            return tuple(pods)
        text = found.text
        return tuple(
            replace(pod, waiting=text) if pod.uid == found.uid and _is_unexplained(pod) else pod
            for pod in pods
        )

    async def look(self, world: World, pods: Sequence[PodView]) -> None:
        """Read the Events of the first pod that waits for an unknown reason, if a read is due.

        Args:
            world: The observed state of a job.
            pods: The job's pods, or none if the job is not active.
        """
        status, now, known = world.job.status, world.now, self._found
        start = status.attempt_start_time
        if status.attempt_spec_hash is None and status.init is not None:
            start = status.init.start_time
        waiting = [pod for pod in pods if _is_unexplained(pod) or _is_known(pod, known)]
        if not waiting or start is None or now - start < _FIRST_READ:
            return
        pod = min(waiting, key=lambda one: one.index)
        same = known if known is not None and known.uid == pod.uid else None
        pause = same.interval if same is not None else _FIRST_READ
        if known is not None and known.read <= now < known.read + pause:
            return
        interval = min(_LONGEST_INTERVAL, 2 * same.interval) if same is not None else _FIRST_READ
        try:
            text = await self._read(world.job.metadata.namespace, pod.uid)
        except ClusterError as error:
            _log.warning("the Events of pod %s cannot be read: %s", pod.name, error)
            text, interval = same.text if same is not None else None, _LONGEST_INTERVAL
        if text is None and pod.node is None and pod.waiting in (None, _UNSEEN):
            text = _UNSEEN
        self._found = _Finding(pod.uid, text, now, interval)


def _is_unexplained(pod: PodView) -> bool:
    """Return whether a pod has not started and its own status shows no reason."""
    return pod.phase == "Pending" and not pod.deleting and not is_stuck(pod)


def _is_known(pod: PodView, known: _Finding | None) -> bool:
    """Return whether only an earlier warning explains why a pod waits."""
    return known is not None and pod.uid == known.uid and pod.waiting == known.text is not None
