"""Track which Kubernetes nodes may run pods, and queue the jobs that a change affects.

Elastic jobs leave a Kubernetes node that is cordoned or tainted at the next step boundary, and do
not grow onto it. All pods of a job train on one GPU product, which a label of each node names. The
view of a node contains only these facts. A kubelet writes its node every few
minutes, but most of these events do not change the view, and cost only their decoding and one
comparison. When a view changes, all jobs with a living pod on the node are queued. The cache
indexes the jobs by node.

The operator also works without the right to watch nodes. Then no node counts as cordoned or
tainted, because no event would report that the node is usable again. No GPU product is known
either. The views stay in memory, because the watch continues from its last version once it is
permitted.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from typing import Protocol

from ddp_operator.cluster.base import ClusterError, Key, Listing, Manifest
from ddp_operator.reconcile.node_view import NodeView, view_node
from ddp_operator.runtime.pod_places import PodPlaces

_log = logging.getLogger(__name__)

_MEANING = (
    "elastic jobs leave a Kubernetes node only when their pods there are evicted, and a job may mix"
    " GPU products"
)


class NodeViews(Protocol):
    """Source of the newest views of Kubernetes nodes."""

    def of(self, names: Iterable[str | None]) -> Mapping[str, NodeView]:
        """Return the known views of these Kubernetes nodes. Any thread may call it."""


class KubernetesNodes:
    """Newest views of all Kubernetes nodes, and consumer of their watch (`watch.Sink`)."""

    def __init__(
        self, places: PodPlaces, wake: Callable[[Key], None], gpu_product_label: str
    ) -> None:
        """Create the views without any node.

        Args:
            places: Index of the Kubernetes nodes of all living pods.
            wake: Function that is called with each job that a changed view affects.
            gpu_product_label: Label of Kubernetes nodes that names the product of their GPUs.
        """
        self._places, self._wake = places, wake
        self._view = partial(view_node, gpu_product_label=gpu_product_label)
        self._views: dict[str, NodeView] = {}
        self._refused = False
        """Whether the API server refuses the watch."""
        self._error = ""
        """Logged error of a watch that fails, or empty."""

    def of(self, names: Iterable[str | None]) -> Mapping[str, NodeView]:
        """Implement `NodeViews.of`."""
        if self._refused:
            return {}
        views = ((name, self._views.get(name)) for name in set(names) if name)
        return {name: view for name, view in views if view is not None}

    def put(self, _kind: str, node: Manifest) -> None:
        """Store the view of a new or changed node."""
        self._store(self._view(node))

    def drop(self, _kind: str, node: Manifest) -> None:
        """Remove a deleted node."""
        self._forget(node["metadata"]["name"])

    @contextmanager
    def relist(self, _kind: str, _namespace: str | None) -> Iterator[Callable[[Listing], None]]:
        """Replace all views by those of a list, which is newer than all events of the watch."""

        def take(listing: Listing) -> None:
            views = {view.name: view for view in map(self._view, listing.items)}
            for name in self._views.keys() - views.keys():
                self._forget(name)
            for view in views.values():
                self._store(view)

        yield take

    def report(self, _kind: str, _namespace: str | None, error: ClusterError | None) -> None:
        """Log the first of equal errors, and the next success."""
        if error is None:
            self._set_refused(False)
            if self._error:
                _log.info("the Kubernetes nodes are watched again")
            self._error = ""
            return
        if error.status == HTTPStatus.FORBIDDEN:
            self._set_refused(True)
        if self._error != str(error):
            self._error = str(error)
            _log.warning("the Kubernetes nodes are not watched, so that %s: %s", _MEANING, error)

    def _store(self, view: NodeView) -> None:
        known = self._views.get(view.name)
        if view == known:
            return
        self._views[view.name] = view
        if view != (known or NodeView(view.name)):
            self._wake_jobs_on(view.name)

    def _forget(self, name: str) -> None:
        view = self._views.pop(name, None)
        if view is not None and view != NodeView(name):
            self._wake_jobs_on(name)

    def _set_refused(self, refused: bool) -> None:
        if refused == self._refused:
            return
        self._refused = refused
        for name, view in self._views.items():
            if view != NodeView(name):
                self._wake_jobs_on(name)

    def _wake_jobs_on(self, name: str) -> None:
        for key in self._places.jobs_on(name):
            self._wake(key)
