"""Table of the kinds of child objects that the operator creates, with one row per kind.

Code that treats all kinds in the same way reads this table: paths of requests, lists of a snapshot,
watches, the cache, the fields that stay in memory, the fields that are compared and restored, the
order of creations, and the rights in the chart, which a test compares. A new kind needs one row and
a builder. There are two exceptions. A job has many pods: `reconcile.children` creates, reuses and
replaces each of them. The group object of a gang scheduler changes its name: `reconcile.gangs`
creates a new object whenever all pods are replaced, and deletes the old object.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ddp_operator.api.job import DDPJob
from ddp_operator.builders.claim import build_claim
from ddp_operator.builders.defaults import Defaults
from ddp_operator.builders.gangs import versions
from ddp_operator.builders.network import build_network_policy
from ddp_operator.builders.service import build_service

Manifest = dict[str, Any]
_OBSERVED_AND_ENSURED = ("get", "list", "watch", "create", "patch")
_ALL = (*_OBSERVED_AND_ENSURED, "delete")


@dataclass(frozen=True)
class ChildKind:
    """One row of the table: a kind of object that the operator creates for a job."""

    name: str
    """Name of the kind. It is KIND.VERSION.GROUP if two rows would have the same kind."""
    api_version: str
    plural: str
    verbs: tuple[str, ...]
    """Verbs of the operator's role on this kind."""
    build: Callable[[DDPJob, Defaults], Manifest | None] | None = None
    """Function that builds the single child of a job, or None for pods and group objects. The
    function returns None for a job that needs no such child."""
    owned: tuple[str, ...] = ()
    """Paths of fields that no other writer may change, for example `spec.selector`."""
    observed: tuple[str, ...] = ()
    """Paths of fields of other writers that the operator reads, for example `status.conditions`."""
    is_used: Callable[[Defaults], bool] = lambda _: True
    """Function that returns whether the operator's settings need this kind. The operator needs no
    rights for other kinds."""
    watched: bool = True
    """Whether a change of a child reconciles its job at once. Otherwise the next relist reconciles
    it."""
    outlives_job: bool = False
    """Whether the child may outlive its job. Then only its labels name the job."""
    before_pods: bool = True
    """Whether the child must exist before the pods of its job are created."""

    @property
    def group(self) -> str:
        """API group of the kind, or "" for the core group."""
        return self.api_version.rpartition("/")[0]

    @property
    def version(self) -> str:
        """API version of the kind, without its group."""
        return self.api_version.rpartition("/")[2]

    @property
    def root(self) -> str:
        """URL path of the API version in the API server."""
        return f"/apis/{self.api_version}" if self.group else f"/api/{self.api_version}"

    def owned_part(self, manifest: Mapping[str, Any]) -> Manifest:
        """Return a child object reduced to the owned fields."""
        return _part(manifest, self.owned)

    def used_part(self, manifest: Mapping[str, Any]) -> Manifest:
        """Return a child object reduced to the fields that the operator reads."""
        return _part(manifest, (*self.owned, *self.observed))

    def is_intact(self, child: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
        """Return whether an existing child has the same owned fields as its manifest."""
        return self.owned_part(child) == self.owned_part(wanted)


def _part(manifest: Mapping[str, Any], paths: tuple[str, ...]) -> Manifest:
    """Return an object reduced to the fields at the given paths of one or two parts."""
    found: Manifest = {}
    for path in paths:
        parent, _, name = path.rpartition(".")
        given = (manifest.get(parent) or {}) if parent else manifest
        place = found.setdefault(parent, {}) if parent else found
        if name in given:
            place[name] = given[name]
    return found


def _group(api_version: str, plural: str, *, owned: tuple[str, ...] = ()) -> ChildKind:
    """Return the row for the group objects of one API version."""
    return ChildKind(
        versions.row_of(api_version),
        api_version,
        plural,
        verbs=_ALL,
        owned=owned,
        observed=("status.conditions", "status.phase"),
        is_used=lambda defaults: defaults.gangs.serves(api_version),
    )


def _network_policy(job: DDPJob, defaults: Defaults) -> Manifest:
    return build_network_policy(job, defaults.agent_clients or ())


_ROWS = (
    ChildKind(
        "Pod",
        "v1",
        "pods",
        verbs=_ALL,
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
    # The operator never deletes a claim. `reconcile.claims` changes an existing one.
    ChildKind(
        "PersistentVolumeClaim",
        "v1",
        "persistentvolumeclaims",
        verbs=_OBSERVED_AND_ENSURED,
        build=lambda job, _: build_claim(job),
        observed=("spec.resources", "status.capacity", "status.phase"),
        is_used=lambda defaults: defaults.checkpoint_claims,
        outlives_job=True,
    ),
    # The API server owns these three: it may add defaults, and all that matters is immutable.
    _group(versions.NATIVE_1_35, "workloads"),
    _group(versions.NATIVE_1_36, "podgroups"),
    _group(versions.NATIVE_1_37, "podgroups"),
    _group(versions.VOLCANO, "podgroups", owned=("spec.minMember",)),
    _group(versions.COSCHEDULING, "podgroups", owned=("spec.minMember",)),
)

KINDS: Final = {row.name: row for row in _ROWS}
"""All kinds by name, in the order in which they are listed and created."""


GROUP_ROWS: Final = tuple(map(versions.row_of, versions.BUILT_VERSIONS))
"""Rows for the group objects of gang schedulers. An API server may serve none of them."""
GROUP_PLURALS: Final = frozenset(KINDS[row].plural for row in GROUP_ROWS)
"""Plural resource names of the group objects."""


def row_name(manifest: Mapping[str, Any]) -> str:
    """Return the name of a child's row from its kind and its API version."""
    kind = str(manifest["kind"])
    group, _, version = str(manifest.get("apiVersion", "")).partition("/")
    qualified = f"{kind}.{version}.{group}"
    return qualified if qualified in KINDS else kind


def kinds_of_kubernetes() -> list[str]:
    """Return the names of the kinds that every Kubernetes API server serves."""
    return [name for name in KINDS if name not in GROUP_ROWS]


def kinds_in_use(defaults: Defaults) -> list[ChildKind]:
    """Return the names of the kinds that the operator uses with the given settings."""
    return [kind for kind in KINDS.values() if kind.is_used(defaults)]
