"""API versions of the group objects, and which of them an API server serves.

Kubernetes' own gang scheduling has changed its shape with each release. The version that the API
server serves tells which shape it has, because each release serves only its own.
"""

from collections.abc import Collection
from dataclasses import dataclass

from ddp_operator.api.gang import GangType

NATIVE_1_35 = "scheduling.k8s.io/v1alpha1"
"""Kubernetes 1.35: the gang is a part of a Workload."""
NATIVE_1_36 = "scheduling.k8s.io/v1alpha2"
"""Kubernetes 1.36: the gang is a PodGroup."""
NATIVE_1_37 = "scheduling.k8s.io/v1beta1"
"""Kubernetes 1.37: the gang is a PodGroup, whose disruption mode has another form."""
VOLCANO = "scheduling.volcano.sh/v1beta1"
COSCHEDULING = "scheduling.x-k8s.io/v1alpha1"

KNOWN_VERSIONS: dict[GangType, tuple[str, ...]] = {
    GangType.NATIVE: (NATIVE_1_37, NATIVE_1_36, NATIVE_1_35),
    GangType.COSCHEDULING: (COSCHEDULING,),
    GangType.VOLCANO: (VOLCANO,),
}
"""API versions of the group objects that the builders know, the preferred one first."""
_LACKS = {
    GangType.NATIVE: (
        "the API server serves no gang scheduling of Kubernetes (1.35 and later; the feature gate"
        " GenericWorkload and an API of scheduling.k8s.io must be switched on)"
    ),
    GangType.COSCHEDULING: (
        f"the API server does not serve {COSCHEDULING}: scheduler-plugins are not installed"
    ),
    GangType.VOLCANO: f"the API server does not serve {VOLCANO}: Volcano is not installed",
}
_NATIVE_KINDS = {NATIVE_1_35: "Workload"}


def group_kind(api_version: str) -> str:
    """Return the kind of the group objects of an API version."""
    return _NATIVE_KINDS.get(api_version, "PodGroup")


def row_of(api_version: str) -> str:
    """Return the name of the row of these group objects in the table of kinds."""
    group, _, version = api_version.partition("/")
    return f"{group_kind(api_version)}.{version}.{group}"


def api_group(gang: GangType) -> str:
    """Return the API group of the group objects of a gang scheduler."""
    return KNOWN_VERSIONS[gang][0].partition("/")[0]


def choose_version(gang: GangType, served: Collection[str]) -> str | None:
    """Return the API version of the group objects to use, or None.

    Args:
        gang: Gang scheduler.
        served: API versions that the API server serves, as GROUP/VERSION.
    """
    return next((one for one in KNOWN_VERSIONS[gang] if one in served), None)


@dataclass(frozen=True)
class Gangs:
    """Gang schedulers of an installation."""

    types: tuple[GangType, ...] = ()
    """Those that jobs may use."""
    default: GangType = GangType.NONE
    """That of jobs which name none."""
    queue: str | None = None
    """Volcano queue of jobs that name none."""
    coscheduling_scheduler: str | None = None
    """Name of the scheduler with the plugin Coscheduling. None for the default scheduler."""
    served: tuple[tuple[GangType, str], ...] = ()
    """API version of the group objects of each type, as far as the API server serves one."""

    def api_version(self, gang: GangType) -> str | None:
        """Return the API version of the group objects of a gang scheduler, or None."""
        return dict(self.served).get(gang)

    def serves(self, api_version: str) -> bool:
        """Return whether the API server serves these group objects, and jobs may use them."""
        return api_version in dict(self.served).values()

    def why_not(self, gang: GangType) -> str | None:
        """Return why a job cannot use a gang scheduler, or None when it can."""
        if gang is GangType.NONE or self.api_version(gang) is not None:
            return None
        if gang not in self.types:
            offered = ", ".join(["None", *self.types])
            return f"this installation offers {offered}, and gangs.types of the chart adds others"
        return _LACKS[gang]
