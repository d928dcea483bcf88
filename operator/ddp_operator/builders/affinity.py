"""Affinity of worker pods: that of the job, and a preference against nodes with strikes.

This module alone writes the field. It appends to the lists of the job and replaces none of them.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from ddp_operator.api.status import StrikeStatus

AVOIDED_STRIKES = 2
"""Number of strikes from which new pods avoid a Kubernetes node."""
STRIKE_LIFETIME = timedelta(hours=24)
"""Time after its last strike for which the strikes of a Kubernetes node count."""
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_WEIGHT = 100


def valid_strikes(strikes: Sequence[StrikeStatus], now: datetime) -> list[StrikeStatus]:
    """Return the strikes that have not expired: the Kubernetes node may be repaired by then."""
    return [strike for strike in strikes if now - strike.last_time < STRIKE_LIFETIME]


def with_avoided_nodes(affinity: Any, strikes: Sequence[StrikeStatus]) -> Any:
    """Return an affinity with a preference against the Kubernetes nodes that have two strikes.

    A preference still allows such a node when no other one has room. It names nodes by the field
    metadata.name, because the label kubernetes.io/hostname may have another value.

    Args:
        affinity: Affinity of the job's podTemplate, or None.
        strikes: Strikes of the job.
    """
    avoided = sorted(s.node for s in strikes if s.count >= AVOIDED_STRIKES)
    if not avoided:
        return affinity
    own = affinity or {}
    of_nodes = (own.get("nodeAffinity") or {}) if isinstance(own, Mapping) else None
    preferred = (of_nodes.get(_PREFERRED) or []) if isinstance(of_nodes, Mapping) else None
    if not isinstance(of_nodes, Mapping) or not isinstance(preferred, list):
        return affinity  # The API server reports it.
    # The API server accepts one value per requirement of a field.
    elsewhere = [{"key": "metadata.name", "operator": "NotIn", "values": [n]} for n in avoided]
    term = {"weight": _WEIGHT, "preference": {"matchFields": elsewhere}}
    return {**own, "nodeAffinity": {**of_nodes, _PREFERRED: [*preferred, term]}}
