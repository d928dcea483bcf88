"""Views of pods, computed once for each version of a pod."""

from collections.abc import Sequence

from ddp_operator.cluster.base import Key, Manifest
from ddp_operator.reconcile.world import PodView, view_pod


class PodViews:
    """Newest views of the pods of each job.

    Each event of one pod reconciles its job. Without this memory that would parse all its pods.
    """

    def __init__(self) -> None:
        self._known: dict[Key, dict[tuple[str, str], PodView]] = {}

    def of(self, key: Key, pods: Sequence[Manifest]) -> tuple[PodView, ...]:
        """Return the views of a job's pods, and forget the views of all its other pods."""
        known = self._known.get(key, {})
        views: dict[tuple[str, str], PodView] = {}
        for pod in pods:
            version = (pod["metadata"]["uid"], pod["metadata"]["resourceVersion"])
            views[version] = known.get(version) or view_pod(pod)
        self._known[key] = views
        return tuple(views.values())

    def forget(self, key: Key) -> None:
        """Forget the views of a job that no longer exists."""
        self._known.pop(key, None)
