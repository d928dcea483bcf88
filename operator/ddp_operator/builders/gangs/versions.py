"""Choose the API version of the group objects from those that the API server serves.

Each release of Kubernetes' own gang scheduling has another format of the group object. The served
version identifies the format, because each release serves only one version.
"""

from collections.abc import Collection
from dataclasses import dataclass

from ddp_operator.api.gang import GangType

NATIVE_1_35 = "scheduling.k8s.io/v1alpha1"
"""API version of Kubernetes 1.35, in which a gang is a part of a Workload."""
NATIVE_1_36 = "scheduling.k8s.io/v1alpha2"
"""API version of Kubernetes 1.36, in which a gang is a PodGroup."""
NATIVE_1_37 = "scheduling.k8s.io/v1beta1"
"""API version of Kubernetes 1.37, in which the PodGroup has another format of the disruption
mode."""
VOLCANO = "scheduling.volcano.sh/v1beta1"
COSCHEDULING = "scheduling.x-k8s.io/v1alpha1"
KUEUE = "kueue.x-k8s.io/v1beta2"
"""API version of Kueue's Workloads. Kueue creates them, and the operator only reads them."""

KNOWN_VERSIONS: dict[GangType, tuple[str, ...]] = {
    GangType.NATIVE: (NATIVE_1_37, NATIVE_1_36, NATIVE_1_35),
    GangType.COSCHEDULING: (COSCHEDULING,),
    GangType.VOLCANO: (VOLCANO,),
    GangType.KUEUE: (KUEUE,),
}
"""API versions of group objects that the operator can use. The preferred version of each API group
comes first."""
BUILT_VERSIONS = tuple(v for known in KNOWN_VERSIONS.values() for v in known if v != KUEUE)
"""API versions of the group objects that the operator builds."""
_LACKS = {
    GangType.NATIVE: (
        "the API server serves no gang scheduling of Kubernetes (1.35 and later; the feature gate"
        " GenericWorkload and an API of scheduling.k8s.io must be switched on)"
    ),
    GangType.COSCHEDULING: (
        f"the API server does not serve {COSCHEDULING}: scheduler-plugins are not installed"
    ),
    GangType.VOLCANO: f"the API server does not serve {VOLCANO}: Volcano is not installed",
    GangType.KUEUE: f"the API server does not serve {KUEUE}: Kueue is not installed, or older",
}
_NATIVE_KINDS = {NATIVE_1_35: "Workload"}


def group_kind(api_version: str) -> str:
    """Return the kind of the group object in an API version."""
    return _NATIVE_KINDS.get(api_version, "PodGroup")


def row_of(api_version: str) -> str:
    """Return the name of the row for these group objects in the table of kinds (`KINDS`)."""
    group, _, version = api_version.partition("/")
    return f"{group_kind(api_version)}.{version}.{group}"


def api_group(gang: GangType) -> str:
    """Return the API group to which a gang scheduler's group objects belong."""
    return KNOWN_VERSIONS[gang][0].partition("/")[0]


def choose_version(gang: GangType, served: Collection[str]) -> str | None:
    """Return the API version to use for a gang scheduler's group objects, or None.

    Args:
        gang: Gang scheduler.
        served: API versions that the API server serves, as GROUP/VERSION.
    """
    return next((one for one in KNOWN_VERSIONS[gang] if one in served), None)


@dataclass(frozen=True)
class Gangs:
    """Gang schedulers that jobs may use, and their API versions."""

    types: tuple[GangType, ...] = ()
    """Gang schedulers that jobs may use."""
    default: GangType = GangType.NONE
    """Gang scheduler of jobs that select none."""
    queue: str | None = None
    """Volcano queue, or LocalQueue of Kueue, of jobs that set no queue."""
    coscheduling_scheduler: str | None = None
    """Name of the scheduler that runs the Coscheduling plugin. None for the default scheduler."""
    served: tuple[tuple[GangType, str], ...] = ()
    """API version of the group objects of each gang scheduler that the API server serves."""

    def api_version(self, gang: GangType) -> str | None:
        """Return the API version of a gang scheduler's group objects, or None."""
        return dict(self.served).get(gang)

    def serves(self, api_version: str) -> bool:
        """Return whether jobs may use a gang scheduler and the API server knows its groups."""
        return api_version in dict(self.served).values()

    def why_not(self, gang: GangType) -> str | None:
        """Return the reason why no job can use a gang scheduler, or None if jobs can use it."""
        if gang is GangType.NONE or self.api_version(gang) is not None:
            return None
        if gang not in self.types:
            offered = ", ".join(["None", *self.types])
            return f"this installation offers {offered}, and gangs.types of the chart adds others"
        return _LACKS[gang]
