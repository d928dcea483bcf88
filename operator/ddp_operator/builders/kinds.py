"""The kinds of children that the operator owns, one row each.

All that treats kinds alike follows from this table: paths of requests, lists of a snapshot,
watches, the cache, the fields that stay in memory, the fields that are compared and restored, the
order of creations, and the rights in the chart, which a test compares. A further kind is one row
and its builder. Pods are the exception: a job has many of them, and `reconcile.children` creates,
reuses and replaces each.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ddp_operator.api.job import DDPJob
from ddp_operator.builders.defaults import Defaults
from ddp_operator.builders.network import build_network_policy
from ddp_operator.builders.service import build_service

Manifest = dict[str, Any]
_OBSERVED_AND_ENSURED = ("get", "list", "watch", "create", "patch")


@dataclass(frozen=True)
class ChildKind:
    """Kind of the objects that the operator creates for a job."""

    name: str
    api_version: str
    plural: str
    verbs: tuple[str, ...]
    """Rights that the operator needs."""
    build: Callable[[DDPJob, Defaults], Manifest] | None = None
    """Builder of the one child of a job, or None for pods."""
    owned: tuple[str, ...] = ()
    """Fields that nobody else may change, for example `spec.selector`. Decisions read no others."""
    is_used: Callable[[Defaults], bool] = lambda _: True
    """Whether an installation with these values has children of this kind. It needs no rights for
    an unused kind."""
    watched: bool = True
    """Whether a change of a child reconciles its job at once. Otherwise the next relist does."""
    before_pods: bool = True
    """Whether the child must exist before the pods of its job are created."""

    @property
    def group(self) -> str:
        """Group of the API, or "" for the core."""
        return self.api_version.rpartition("/")[0]

    @property
    def version(self) -> str:
        """Version of the API."""
        return self.api_version.rpartition("/")[2]

    @property
    def root(self) -> str:
        """Path of the API in the API server."""
        return f"/apis/{self.api_version}" if self.group else f"/api/{self.api_version}"

    def owned_part(self, manifest: Mapping[str, Any]) -> Manifest:
        """Return the owned fields of a child."""
        found: Manifest = {}
        for path in self.owned:
            parent, _, name = path.rpartition(".")
            given = (manifest.get(parent) or {}) if parent else manifest
            place = found.setdefault(parent, {}) if parent else found
            if name in given:
                place[name] = given[name]
        return found

    def is_intact(self, child: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
        """Return whether an existing child has the owned fields of its manifest."""
        return self.owned_part(child) == self.owned_part(wanted)


def _network_policy(job: DDPJob, defaults: Defaults) -> Manifest:
    return build_network_policy(job, defaults.agent_clients or ())


_ROWS = (
    ChildKind(
        "Pod",
        "v1",
        "pods",
        verbs=(*_OBSERVED_AND_ENSURED, "delete"),
    ),
    ChildKind(
        "Service",
        "v1",
        "services",
        verbs=_OBSERVED_AND_ENSURED,
        build=lambda job, _: build_service(job),
        # Addresses that appear only when a pod is ready appear too late for the rendezvous.
        owned=("spec.selector", "spec.publishNotReadyAddresses"),
    ),
    ChildKind(
        "NetworkPolicy",
        "networking.k8s.io/v1",
        "networkpolicies",
        verbs=_OBSERVED_AND_ENSURED,
        build=_network_policy,
        owned=("spec.podSelector", "spec.ingress", "spec.egress", "spec.policyTypes"),
        is_used=lambda defaults: defaults.agent_clients is not None,
    ),
)

KINDS: Final = {row.name: row for row in _ROWS}
"""All kinds by name, in the order in which they are listed and created."""


def kinds_in_use(defaults: Defaults) -> list[ChildKind]:
    """Return the kinds that an installation with these values has."""
    return [kind for kind in KINDS.values() if kind.is_used(defaults)]
