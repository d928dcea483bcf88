"""Measure how long this process has seen a state of a job.

Only this process' monotonic clock measures it. The clocks of the API server, of the Kubernetes
nodes and of an earlier operator may differ from it.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta

from ddp_operator.cluster.base import Key
from ddp_operator.reconcile import backoff
from ddp_operator.reconcile.world import PodView

_Creations = dict[str, tuple[int, int, float]]
"""Attempt, number of creations for it, and time of the last one, by pod name."""


class Sightings:
    """Times at which this process first saw states of jobs. A restart begins to measure again."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        """Create the sightings. `monotonic` returns seconds of a clock that is never set."""
        self._monotonic = monotonic
        self._undecided: dict[Key, float] = {}
        self._deleting: dict[Key, dict[str, float]] = {}
        self._creations: dict[Key, _Creations] = {}

    def record_decision(self, key: Key, *, undecided: bool) -> None:
        """Record whether the job has faults without a root cause."""
        if undecided:
            self._undecided.setdefault(key, self._monotonic())
        else:
            self._undecided.pop(key, None)

    def undecided_for(self, key: Key) -> timedelta | None:
        """Return how long the job has had faults without a root cause, or None."""
        since = self._undecided.get(key)
        return None if since is None else self._since(since)

    def deleting_for(self, key: Key, pods: Iterable[PodView]) -> Mapping[str, timedelta]:
        """Record which pods are being deleted. Return for how long, by pod uid."""
        known, now = self._deleting.get(key, {}), self._monotonic()
        current = {pod.uid: known.get(pod.uid, now) for pod in pods if pod.deleting}
        if current:
            self._deleting[key] = current
        else:
            self._deleting.pop(key, None)
        return {uid: timedelta(seconds=now - since) for uid, since in current.items()}

    def record_creation(self, key: Key, attempt: int, name: str) -> None:
        """Record that a pod was created for an attempt."""
        of_job = self._creations.setdefault(key, {})
        last, count, _ = of_job.get(name, (attempt, 0, 0.0))
        of_job[name] = (attempt, count + 1 if last == attempt else 1, self._monotonic())

    def creation_waits(self, key: Key, attempt: int) -> Mapping[str, timedelta]:
        """Return how long pods must still wait until they are created again, by name."""
        waits = {}
        for name, (last, count, at) in self._creations.get(key, {}).items():
            if last == attempt:
                left = backoff.before_creation(count) - self._since(at)
                if left > timedelta(0):
                    waits[name] = left
        return waits

    def forget(self, key: Key) -> None:
        """Forget a job that no longer exists."""
        for state in (self._undecided, self._deleting, self._creations):
            state.pop(key, None)

    def _since(self, time: float) -> timedelta:
        return timedelta(seconds=self._monotonic() - time)
