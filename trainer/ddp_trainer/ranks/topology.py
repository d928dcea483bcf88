"""Where the ranks are: node, rack and zone of each, and whether they lie in that order."""

import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby

from ddp_wire.contract import Env

_SWITCH = "switch"


@dataclass(frozen=True, slots=True)
class Place:
    """Where one rank computes; a name is empty where nobody tells it."""

    host: str
    """The machine: in a pod the Kubernetes node's name, not the pod's."""
    rack: str = ""
    """What shares the nearest switch."""
    zone: str = ""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "Place":
        """Reads what the operator tells a pod, or else what Slurm tells its tasks.

        Args:
            environ: The process's environment.
        """
        host = environ.get(Env.NODE_NAME) or environ.get("SLURMD_NODENAME") or socket.gethostname()
        return cls(host, environ.get(Env.RACK) or _leaf_switch(environ), environ.get(Env.ZONE, ""))


def _leaf_switch(environ: Mapping[str, str]) -> str:
    """The last switch of Slurm's topology address, as `leaf3` of `spine.leaf3.node7`."""
    names = environ.get("SLURM_TOPOLOGY_ADDR", "").split(".")
    kinds = environ.get("SLURM_TOPOLOGY_ADDR_PATTERN", "").split(".")
    if len(names) != len(kinds):
        return ""  # a node's name with dots in it
    switches = [name for name, kind in zip(names, kinds, strict=True) if kind == _SWITCH]
    return switches[-1] if switches else ""


def rank_map(places: Sequence[Place]) -> list[dict[str, str]]:
    """Consecutive ranks in one place, as `{"ranks": "0-7", "host": "gpu-3", "zone": "a"}`.

    Args:
        places: By rank.
    """
    rows = []
    for place, group in groupby(range(len(places)), key=places.__getitem__):
        first, *rest = group
        ranks = f"{first}-{rest[-1]}" if rest else str(first)
        rows.append({"ranks": ranks} | {k: v for k, v in asdict(place).items() if v})
    return rows


def disorder(places: Sequence[Place]) -> str | None:
    """One sentence if the ring of ranks changes between zones or racks more often than it must.

    A ring, by which most reductions go, crosses n groups n times at least.

    Args:
        places: By rank.
    """
    for noun in ("zone", "rack"):
        groups = [getattr(place, noun) for place in places]
        fewest = len(set(groups))
        crossings = sum(a != b for a, b in zip(groups, groups[1:] + groups[:1], strict=True))
        if crossings > fewest > 1:
            return (
                f"the ring of ranks crosses from {noun} to {noun} {crossings} times where {fewest}"
                f" would do, which is slower: let the nodes lie in one {noun}, or in their order"
            )
    return None
