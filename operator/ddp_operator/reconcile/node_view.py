"""View of a Kubernetes node: whether new pods may run on it, and the product of its GPUs.

The view omits taints that Kubernetes sets for a condition of the node, for example a silent kubelet
or a full disk. These taints are often temporary, and a running pod may survive them. If it does
not, the kubelet or the taint manager evicts it. A reaction to each taint would cost an attempt each
time.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

_EVICTS = frozenset({"NoSchedule", "NoExecute"})
_UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
"""Taint that Kubernetes sets on a cordoned node."""
CONDITION_TAINTS: Final = frozenset(
    f"node.kubernetes.io/{name}"
    for name in (
        "not-ready",
        "unreachable",
        "memory-pressure",
        "disk-pressure",
        "pid-pressure",
        "network-unavailable",
    )
)
"""Taints that Kubernetes adds and removes with the conditions of a node."""


@dataclass(frozen=True)
class Taint:
    """Taint of a Kubernetes node."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True)
class Toleration:
    """Toleration of a pod."""

    key: str = ""
    """Key of the tolerated taint, or empty for every key."""
    exists: bool = False
    """Whether every value of the taint is tolerated. Otherwise only `value` is."""
    value: str = ""
    effect: str = ""
    """Effect of the tolerated taint, or empty for every effect."""

    def matches(self, taint: Taint) -> bool:
        """Return whether a taint is tolerated, according to the rules of Kubernetes."""
        if self.effect not in {"", taint.effect}:
            return False
        if not self.key:
            return self.exists  # It tolerates every taint.
        return self.key == taint.key and (self.exists or self.value == taint.value)


@dataclass(frozen=True)
class NodeView:
    """The fields of a Kubernetes node that decisions depend on."""

    name: str
    cordoned: bool = False
    taints: tuple[Taint, ...] = ()
    gpu_product: str = ""
    """Product of the node's GPUs, from its label, or "" if it has no such label."""

    def why_unusable(self, tolerations: Sequence[Toleration]) -> str | None:
        """Return the reason why a pod with these tolerations may not run on the node, or None."""
        if self.cordoned:
            return f"the Kubernetes node {self.name} is cordoned"
        for taint in self.taints:
            if taint.effect in _EVICTS and not any(t.matches(taint) for t in tolerations):
                text = f"{taint.key}={taint.value}" if taint.value else taint.key
                return f"the Kubernetes node {self.name} has the taint {text}:{taint.effect}"
        return None


def view_node(manifest: Mapping[str, Any], gpu_product_label: str) -> NodeView:
    """Return the view of a Kubernetes node from its manifest.

    Args:
        manifest: Manifest of the node.
        gpu_product_label: Label of Kubernetes nodes that names the product of their GPUs.
    """
    spec, metadata = manifest.get("spec") or {}, manifest["metadata"]
    taints = tuple(
        Taint(str(t.get("key")), str(t.get("value") or ""), str(t.get("effect")))
        for t in spec.get("taints") or []
        if t.get("key") != _UNSCHEDULABLE and t.get("key") not in CONDITION_TAINTS
    )
    product = str((metadata.get("labels") or {}).get(gpu_product_label) or "")
    return NodeView(metadata["name"], bool(spec.get("unschedulable")), taints, product)


def view_tolerations(given: Iterable[Mapping[str, Any]]) -> tuple[Toleration, ...]:
    """Return the tolerations in the spec of a pod."""
    return tuple(
        Toleration(
            str(one.get("key") or ""),
            one.get("operator") == "Exists",
            str(one.get("value") or ""),
            str(one.get("effect") or ""),
        )
        for one in given
    )
