"""Measure how long this process has observed a state of a job.

The durations are measured by this process's monotonic clock, because the clocks of the API server,
of the Kubernetes nodes and of an earlier operator may differ.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta

from ddp_operator.reconcile import backoff
from ddp_operator.reconcile.pod_view import PodView


class Sightings:
    """Times at which this process first observed the states of one job. A restart resets them."""

    __slots__ = ("_creations", "_deleting", "_monotonic", "_nodes", "_undecided")

    def __init__(self, monotonic: Callable[[], float]) -> None:
        """Create an empty record. `monotonic` returns the seconds of a monotonic clock."""
        self._monotonic = monotonic
        self._undecided: float | None = None
        self._deleting: dict[str, float] = {}
        """Time of the first sight of each deletion, by pod uid."""
        self._creations: dict[int, tuple[int, int, float]] = {}
        """Attempt, number of creations for it, and time of the last one, by node of the job."""
        self._nodes: dict[int, str] = {}
        """Kubernetes node on which the pod of each node of the job was seen last."""

    def record_decision(self, *, undecided: bool) -> None:
        """Record whether the job has faults without a root cause."""
        if not undecided:
            self._undecided = None
        elif self._undecided is None:
            self._undecided = self._monotonic()

    def undecided_for(self) -> timedelta | None:
        """Return how long the job has had faults without a root cause, or None without faults."""
        return None if self._undecided is None else self._since(self._undecided)

    def deleting_for(self, pods: Iterable[PodView]) -> Mapping[str, timedelta]:
        """Record which pods are being deleted. Return how long each has been, by pod uid."""
        known, now = self._deleting, self._monotonic()
        self._deleting = {pod.uid: known.get(pod.uid, now) for pod in pods if pod.deleting}
        return {uid: timedelta(seconds=now - since) for uid, since in self._deleting.items()}

    def last_nodes(self, pods: Iterable[PodView]) -> Mapping[int, str]:
        """Record where pods run. Return the last Kubernetes node by node of the job."""
        known = sorted(pods, key=lambda pod: not pod.terminal)  # Living pods come last.
        self._nodes |= {pod.index: pod.node for pod in known if pod.node is not None}
        return dict(self._nodes)

    def record_creation(self, attempt: int, index: int) -> None:
        """Record that the pod of a node was created for an attempt."""
        last, count, _ = self._creations.get(index, (attempt, 0, 0.0))
        count = count + 1 if last == attempt else 1
        self._creations[index] = (attempt, count, self._monotonic())

    def creation_waits(self, attempt: int) -> Mapping[int, timedelta]:
        """Return the seconds until the pod of each node may be created again."""
        waits = {}
        for index, (last, count, at) in self._creations.items():
            if last == attempt:
                left = backoff.before_creation(count) - self._since(at)
                if left > timedelta(0):
                    waits[index] = left
        return waits

    def _since(self, time: float) -> timedelta:
        return timedelta(seconds=self._monotonic() - time)
