"""Release pods that Kueue keeps although their job was deleted.

The garbage collector deletes the pods of a deleted job, and Kueue keeps them with a finalizer: it
waits for successors. It releases the pods of a group when their Workload is deleted. No job needs a
finalizer for this, because the operator finds the pods again after a restart.
"""

from collections.abc import Sequence

from ddp_operator.builders.gangs.kueue import MANAGED, group_of
from ddp_operator.cluster.base import Cluster, Key, Manifest, owner_uids


class Orphans:
    """Releaser of the pods of deleted jobs."""

    def __init__(self, cluster: Cluster) -> None:
        """Create a releaser that writes to a cluster."""
        self._cluster = cluster
        self._released: dict[Key, set[str]] = {}
        """Groups whose Workload this process has deleted, by the key of their job."""

    async def release(self, key: Key, job: Manifest | None, pods: Sequence[Manifest]) -> None:
        """Delete the Workloads of groups whose job no longer exists.

        Args:
            key: Key of the job, or of an earlier job with its name.
            job: The job, or None if it was deleted.
            pods: All pods with the job's name in their label.
        """
        groups = _orphaned_groups(job, pods)
        if not groups:
            self._released.pop(key, None)
            return
        known = self._released.setdefault(key, set())
        if groups <= known:
            return
        # The cache may not know the job yet.
        current = await self._cluster.get_job(key)
        for group in sorted(groups & _orphaned_groups(current, pods)):
            await self._cluster.delete_workload(key[0], group)
            known.add(group)


def _orphaned_groups(job: Manifest | None, pods: Sequence[Manifest]) -> set[str]:
    """Return the groups that Kueue keeps although all their pods are deleted with their job."""
    uid = job["metadata"]["uid"] if job is not None else None
    groups: dict[str, list[Manifest]] = {}
    for pod in pods:
        group = group_of(pod["metadata"])
        if group and uid not in owner_uids(pod):
            groups.setdefault(group, []).append(pod["metadata"])
    return {
        group
        for group, members in groups.items()
        if all(one.get("deletionTimestamp") for one in members)
        and any(MANAGED in (one.get("finalizers") or ()) for one in members)
    }
