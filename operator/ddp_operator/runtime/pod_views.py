"""Cache the view of each pod, so that each version of a pod is parsed only once."""

from collections.abc import Sequence

from ddp_operator.cluster.base import Manifest
from ddp_operator.reconcile.pod_view import PodView, view_pod


class PodViews:
    """Cache of the newest views of one job's pods.

    Each event of a pod triggers a reconcile of its job, which would otherwise parse all pods of the
    job.
    """

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], PodView] = {}

    def of(self, pods: Sequence[Manifest]) -> tuple[PodView, ...]:
        """Return the views of the given pods, and forget the views of all other pods."""
        views: dict[tuple[str, str], PodView] = {}
        for pod in pods:
            version = (pod["metadata"]["uid"], pod["metadata"]["resourceVersion"])
            views[version] = self._known.get(version) or view_pod(pod)
        self._known = views
        return tuple(views.values())
