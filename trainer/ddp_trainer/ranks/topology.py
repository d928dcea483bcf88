"""Determine host, rack and zone of each rank, and check the order of the ranks."""

import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby

from ddp_wire.contract import Env

_SWITCH = "switch"


@dataclass(frozen=True, slots=True)
class Location:
    """Location of one rank. Unknown fields are empty."""

    host: str
    """Name of the machine. In a pod it is the name of the Kubernetes node, not of the pod."""
    rack: str = ""
    """Name of the group of machines that share the nearest switch."""
    zone: str = ""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "Location":
        """Return the location from the environment variables of the operator or of Slurm.

        Args:
            environ: The process's environment. The operator's variables take precedence.
        """
        host = environ.get(Env.NODE_NAME) or environ.get("SLURMD_NODENAME") or socket.gethostname()
        return cls(host, environ.get(Env.RACK) or _leaf_switch(environ), environ.get(Env.ZONE, ""))


def _leaf_switch(environ: Mapping[str, str]) -> str:
    """Return the last switch in Slurm's topology address: `leaf3` for `spine.leaf3.node7`."""
    names = environ.get("SLURM_TOPOLOGY_ADDR", "").split(".")
    kinds = environ.get("SLURM_TOPOLOGY_ADDR_PATTERN", "").split(".")
    if len(names) != len(kinds):
        return ""  # the node's name contains dots
    switches = [name for name, kind in zip(names, kinds, strict=True) if kind == _SWITCH]
    return switches[-1] if switches else ""


def rank_map(locations: Sequence[Location]) -> list[dict[str, str]]:
    """Group consecutive ranks by location, as `{"ranks": "0-7", "host": "gpu-3", "zone": "a"}`.

    Args:
        locations: Location of each rank, in the order of ranks.
    """
    rows = []
    for location, group in groupby(range(len(locations)), key=locations.__getitem__):
        first, *rest = group
        ranks = f"{first}-{rest[-1]}" if rest else str(first)
        rows.append({"ranks": ranks} | {k: v for k, v in asdict(location).items() if v})
    return rows


def ring_warning(locations: Sequence[Location]) -> str | None:
    """Return a warning if the ring of ranks crosses zones or racks more often than necessary.

    Most reductions send data around this ring. A ring over n groups needs at least n crossings.

    Args:
        locations: Location of each rank, in the order of ranks.
    """
    for noun in ("zone", "rack"):
        groups = [getattr(location, noun) for location in locations]
        fewest = len(set(groups))
        crossings = sum(a != b for a, b in zip(groups, groups[1:] + groups[:1], strict=True))
        if crossings > fewest > 1:
            return (
                f"the ring of ranks crosses between {noun}s {crossings} times, but {fewest} times"
                f" are enough; this slows down reductions: use nodes in one {noun}, or order the"
                f" nodes by {noun}"
            )
    return None
