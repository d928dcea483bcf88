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
        self._creations: dict[str, tuple[int, int, float]] = {}
        """Attempt, number of creations for it, and time of the last one, by pod name."""
        self._nodes: dict[str, str] = {}
        """Kubernetes node on which each pod was seen last, by pod name."""

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

    def last_nodes(self, pods: Iterable[PodView]) -> Mapping[str, str]:
        """Record where pods run. Return each pod's last Kubernetes node by name of the pod."""
        self._nodes |= {pod.name: pod.node for pod in pods if pod.node is not None}
        return dict(self._nodes)

    def record_creation(self, attempt: int, name: str) -> None:
        """Record that a pod was created for an attempt."""
        last, count, _ = self._creations.get(name, (attempt, 0, 0.0))
        count = count + 1 if last == attempt else 1
        self._creations[name] = (attempt, count, self._monotonic())

    def creation_waits(self, attempt: int) -> Mapping[str, timedelta]:
        """Return the seconds until each pod may be created again, by pod name."""
        waits = {}
        for name, (last, count, at) in self._creations.items():
            if last == attempt:
                left = backoff.before_creation(count) - self._since(at)
                if left > timedelta(0):
                    waits[name] = left
        return waits

    def _since(self, time: float) -> timedelta:
        return timedelta(seconds=self._monotonic() - time)
