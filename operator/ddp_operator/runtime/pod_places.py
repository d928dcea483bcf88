"""Index jobs by the Kubernetes nodes of their pods, so that an event of a node finds its jobs."""

from ddp_operator.cluster.base import Key, Manifest

_ENDED = frozenset({"Succeeded", "Failed"})


class PodPlaces:
    """Kubernetes nodes of all living pods, which neither ended nor are being deleted."""

    def __init__(self) -> None:
        self._pods: dict[str, set[tuple[Key, str]]] = {}
        """Job and name of each living pod, by the name of its Kubernetes node."""

    def move(self, key: Key, name: str, old: Manifest | None, new: Manifest | None) -> None:
        """Record that a pod of a job was created, changed or removed.

        Args:
            key: Key of the job.
            name: Name of the pod.
            old: The former version of the pod, or None.
            new: The new version of the pod, or None.
        """
        before, now = _place(old), _place(new)
        if before == now:
            return
        if before is not None:
            there = self._pods[before]
            there.discard((key, name))
            if not there:
                del self._pods[before]
        if now is not None:
            self._pods.setdefault(now, set()).add((key, name))

    def jobs_on(self, node: str) -> set[Key]:
        """Return the jobs with a living pod on a Kubernetes node."""
        return {key for key, _ in self._pods.get(node, ())}

    def __len__(self) -> int:
        """Return the number of Kubernetes nodes with a living pod."""
        return len(self._pods)


def _place(pod: Manifest | None) -> str | None:
    """Return the Kubernetes node of a living pod, or None."""
    if pod is None or pod["metadata"].get("deletionTimestamp") is not None:
        return None
    if (pod.get("status") or {}).get("phase") in _ENDED:
        return None
    place: str | None = (pod.get("spec") or {}).get("nodeName")
    return place or None
