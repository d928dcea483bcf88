"""View of a Kubernetes node: whether new pods may run on it, read from its manifest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_EVICTS = frozenset({"NoSchedule", "NoExecute"})
_OF_KUBERNETES = "node.kubernetes.io/"
"""Prefix of the taints that Kubernetes itself sets: on a cordoned node, which `cordoned` shows; on
a node that lacks memory or disk, where pods go on; and on a lost node, which is a fault."""


@dataclass(frozen=True)
class Taint:
    """Taint of a Kubernetes node."""

    key: str
    value: str
    effect: str

    def is_tolerated(self, tolerations: Sequence[Mapping[str, Any]]) -> bool:
        """Return whether one of the tolerations of a pod matches, by the rules of Kubernetes."""
        return any(self._matches(one) for one in tolerations)

    def _matches(self, toleration: Mapping[str, Any]) -> bool:
        if toleration.get("effect") not in (None, "", self.effect):
            return False
        key, exists = toleration.get("key") or "", toleration.get("operator") == "Exists"
        if not key:
            return exists  # It tolerates every taint.
        return key == self.key and (exists or (toleration.get("value") or "") == self.value)


@dataclass(frozen=True)
class NodeView:
    """The fields of a Kubernetes node that decisions depend on."""

    name: str
    cordoned: bool = False
    taints: tuple[Taint, ...] = ()

    def why_unusable(self, tolerations: Sequence[Mapping[str, Any]]) -> str | None:
        """Return why a pod with these tolerations would get no place here, as a sentence."""
        if self.cordoned:
            return f"the Kubernetes node {self.name} is cordoned"
        for taint in self.taints:
            if taint.effect in _EVICTS and not taint.is_tolerated(tolerations):
                text = f"{taint.key}={taint.value}" if taint.value else taint.key
                return f"the Kubernetes node {self.name} has the taint {text}:{taint.effect}"
        return None


def view_node(manifest: Mapping[str, Any]) -> NodeView:
    """Return the view of a node manifest from the API server."""
    spec = manifest.get("spec") or {}
    taints = tuple(
        Taint(str(t.get("key")), str(t.get("value") or ""), str(t.get("effect")))
        for t in spec.get("taints") or []
        if not str(t.get("key")).startswith(_OF_KUBERNETES)
    )
    return NodeView(manifest["metadata"]["name"], bool(spec.get("unschedulable")), taints)
