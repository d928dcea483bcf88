"""Views of pods, computed once for each version of a pod."""

from collections.abc import Sequence

from ddp_operator.cluster.base import Manifest
from ddp_operator.reconcile.pod_view import PodView, view_pod


class PodViews:
    """Newest views of the pods of one job.

    Each event of one pod reconciles its job. Without this memory that would parse all its pods.
    """

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], PodView] = {}

    def of(self, pods: Sequence[Manifest]) -> tuple[PodView, ...]:
        """Return the views of the job's pods, and forget the views of all its other pods."""
        views: dict[tuple[str, str], PodView] = {}
        for pod in pods:
            version = (pod["metadata"]["uid"], pod["metadata"]["resourceVersion"])
            views[version] = self._known.get(version) or view_pod(pod)
        self._known = views
        return tuple(views.values())
