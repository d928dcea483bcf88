"""Cache of jobs and their children, filled by watches and relists."""

from ddp_operator.cluster.base import Key, Listing, Manifest, Snapshot
from ddp_wire import contract


class Cache:
    """Newest known jobs and children, by job key.

    The cache can lag behind the API server, so no action is taken from its contents alone.
    """

    def __init__(self) -> None:
        self._jobs: dict[Key, Manifest] = {}
        self._children: dict[str, dict[Key, dict[str, Manifest]]] = {"Pod": {}, "Service": {}}

    def job(self, key: Key) -> Manifest | None:
        """Return the job with a key, or None."""
        return self._jobs.get(key)

    def keys(self) -> list[Key]:
        """Return the keys of all jobs."""
        return list(self._jobs)

    def children(self, kind: str, key: Key) -> list[Manifest]:
        """Return the pods or Services of a job, and of earlier jobs with the same name."""
        return list(self._children[kind].get(key, {}).values())

    def put_job(self, job: Manifest) -> Key:
        """Store a job unless a newer version is known. Return its key."""
        key = (job["metadata"]["namespace"], job["metadata"]["name"])
        if _is_newer(job, self._jobs.get(key)):
            self._jobs[key] = job
        return key

    def drop_job(self, job: Manifest) -> Key:
        """Remove a deleted job, but not a later job with the same name. Return its key."""
        key = (job["metadata"]["namespace"], job["metadata"]["name"])
        known = self._jobs.get(key)
        if known is not None and known["metadata"]["uid"] == job["metadata"]["uid"]:
            del self._jobs[key]
        return key

    def forget_job(self, key: Key) -> None:
        """Remove the job with a key, if there is one."""
        self._jobs.pop(key, None)

    def put_child(self, kind: str, child: Manifest) -> Key | None:
        """Store a child unless a newer version is known. Return its job's key."""
        key = job_key(child)
        if key is None:
            return None
        known = self._children[kind].setdefault(key, {})
        name = child["metadata"]["name"]
        if _is_newer(child, known.get(name)):
            known[name] = child
        return key

    def drop_child(self, kind: str, child: Manifest) -> Key | None:
        """Remove a deleted child, but not a later child with the same name.

        Returns:
            Key of the child's job.
        """
        key = job_key(child)
        if key is None:
            return None
        known = self._children[kind].get(key, {})
        name = child["metadata"]["name"]
        if name in known and known[name]["metadata"]["uid"] == child["metadata"]["uid"]:
            del known[name]
        if not known:
            self._children[kind].pop(key, None)
        return key

    def replace(self, snapshot: Snapshot) -> set[Key]:
        """Replace the contents by a relist, but keep objects that a watch delivered since.

        Returns:
            Keys of all jobs that are known or were known before.
        """
        affected = set(self._jobs) | set(self._children["Pod"])
        self._jobs = {k: j for k, j in self._jobs.items() if _is_later(j, snapshot.jobs)}
        for job in snapshot.jobs.items:
            self.put_job(job)
        for kind, listing in (("Pod", snapshot.pods), ("Service", snapshot.services)):
            self._children[kind] = {
                key: {name: c for name, c in known.items() if _is_later(c, listing)}
                for key, known in self._children[kind].items()
            }
            for child in listing.items:
                self.put_child(kind, child)
            self._children[kind] = {k: known for k, known in self._children[kind].items() if known}
        return affected | set(self._jobs)


def _is_later(known: Manifest, listing: Listing) -> bool:
    return int(known["metadata"]["resourceVersion"]) > listing.version


def job_key(child: Manifest) -> Key | None:
    """Return the key of the job that a child's label names, or None without the label."""
    metadata = child["metadata"]
    name = (metadata.get("labels") or {}).get(contract.LABEL_JOB_NAME)
    return (metadata["namespace"], name) if name else None


def _is_newer(new: Manifest, old: Manifest | None) -> bool:
    """Return whether `new` replaces `old`. Resource versions of one object only grow."""
    if old is None or new["metadata"]["uid"] != old["metadata"]["uid"]:
        return True
    return int(new["metadata"]["resourceVersion"]) >= int(old["metadata"]["resourceVersion"])
