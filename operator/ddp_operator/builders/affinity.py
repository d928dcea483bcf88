"""Build the affinity of worker pods from the job's affinity and the operator's own terms.

This module alone writes the field. In five of the six lists of an affinity all terms apply
together. The operator appends its own terms to these lists, and keeps the job's terms. The terms of
the sixth list, the required nodeSelectorTerms, are alternatives: an appended term would weaken the
job's requirement. Therefore the operator adds a required label to each alternative.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from ddp_operator.api.status import StrikeStatus

AVOIDED_STRIKES = 2
"""Minimum number of strikes at which new pods avoid a Kubernetes node."""
STRIKE_LIFETIME = timedelta(hours=24)
"""Time after the newest strike at which the strikes of a Kubernetes node expire."""
NODES, PODS, OTHER_PODS = "nodeAffinity", "podAffinity", "podAntiAffinity"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_WEIGHT = 100


@dataclass(frozen=True)
class Term:
    """One term that the operator adds to an affinity."""

    group: str
    """Field of the affinity: `NODES`, `PODS` or `OTHER_PODS`."""
    rule: str
    """Field of the group with the list: `PREFERRED` or `REQUIRED`."""
    value: Mapping[str, Any]
    """Item of the list."""

    def __post_init__(self) -> None:
        """Refuse a required term about nodes, because it would only be one more alternative."""
        if (self.group, self.rule) == (NODES, REQUIRED):
            raise ValueError("required terms of nodeAffinity are alternatives")


@dataclass(frozen=True)
class NodeLabel:
    """Label that the Kubernetes node must have, in addition to the job's own requirements."""

    key: str
    value: str


def valid_strikes(strikes: Sequence[StrikeStatus], now: datetime) -> list[StrikeStatus]:
    """Return the strikes that have not expired. After that time the node may be repaired."""
    return [strike for strike in strikes if now - strike.last_time < STRIKE_LIFETIME]


def avoided_nodes(strikes: Sequence[StrikeStatus]) -> list[Term]:
    """Return the preference against the Kubernetes nodes with two strikes, if any.

    Pods may still run on an avoided node if no other node has room. The preference names nodes by
    the field metadata.name, because the label kubernetes.io/hostname may have another value.
    """
    avoided = sorted(s.node for s in strikes if s.count >= AVOIDED_STRIKES)
    if not avoided:
        return []
    # The API server accepts one value per requirement of a field.
    elsewhere = [{"key": "metadata.name", "operator": "NotIn", "values": [n]} for n in avoided]
    return [Term(NODES, PREFERRED, {"weight": _WEIGHT, "preference": {"matchFields": elsewhere}})]


def with_terms(affinity: Any, terms: Iterable[Term | NodeLabel]) -> Any:
    """Return an affinity with appended terms and with labels that the node must have.

    Args:
        affinity: Affinity of the job's podTemplate, or None. A value of a wrong type is returned
            unchanged, because the API server reports it.
        terms: Terms to append, and labels to require.
    """
    for term in terms:
        affinity = (
            _with_label(affinity, term)
            if isinstance(term, NodeLabel)
            else _with_term(affinity, term)
        )
    return affinity


def _with_term(affinity: Any, term: Term) -> Any:
    own = affinity or {}
    group = (own.get(term.group) or {}) if isinstance(own, Mapping) else None
    items = (group.get(term.rule) or []) if isinstance(group, Mapping) else None
    if not isinstance(group, Mapping) or not isinstance(items, list):
        return affinity
    return {**own, term.group: {**group, term.rule: [*items, dict(term.value)]}}


def _with_label(affinity: Any, label: NodeLabel) -> Any:
    own = affinity or {}
    group = (own.get(NODES) or {}) if isinstance(own, Mapping) else None
    if not isinstance(group, Mapping):
        return affinity
    required = {"key": label.key, "operator": "In", "values": [label.value]}
    rule = group.get(REQUIRED)
    if rule is None:
        rule = {"nodeSelectorTerms": [{"matchExpressions": [required]}]}
    elif isinstance(rule, Mapping) and isinstance(rule.get("nodeSelectorTerms"), list):
        alternatives = [_narrowed(one, required) for one in rule["nodeSelectorTerms"]]
        rule = {**rule, "nodeSelectorTerms": alternatives}
    return {**own, NODES: {**group, REQUIRED: rule}}


def _narrowed(alternative: Any, required: Mapping[str, Any]) -> Any:
    """Return one of the nodeSelectorTerms with an additional required expression.

    An empty term matches no node. It stays empty, because with the expression it would match some
    nodes.
    """
    if not isinstance(alternative, Mapping):
        return alternative
    given = alternative.get("matchExpressions") or []
    if not isinstance(given, list) or not (given or alternative.get("matchFields")):
        return alternative
    return {**alternative, "matchExpressions": [*given, dict(required)]}
