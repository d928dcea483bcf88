"""The newest known state of jobs and their children, fed by watches and by relists."""

from ddp_operator.cluster.base import Key, Listing, Manifest, Snapshot
from ddp_wire import contract


class Cache:
    """Objects by job. It may lag behind: only reads that lead to no action rely on it alone."""

    def __init__(self) -> None:
        self._jobs: dict[Key, Manifest] = {}
        self._children: dict[str, dict[Key, dict[str, Manifest]]] = {"Pod": {}, "Service": {}}

    def job(self, key: Key) -> Manifest | None:
        """The job of a key."""
        return self._jobs.get(key)

    def keys(self) -> list[Key]:
        """Keys of all jobs."""
        return list(self._jobs)

    def children(self, kind: str, key: Key) -> list[Manifest]:
        """The pods or Services of a job, and those of earlier jobs of its name."""
        return list(self._children[kind].get(key, {}).values())

    def put_job(self, job: Manifest) -> Key:
        """Take a job's state in, unless a newer one is known. Returns its key."""
        key = (job["metadata"]["namespace"], job["metadata"]["name"])
        if _newer(job, self._jobs.get(key)):
            self._jobs[key] = job
        return key

    def drop_job(self, job: Manifest) -> Key:
        """Forget a deleted job, unless one of its name has come since."""
        key = (job["metadata"]["namespace"], job["metadata"]["name"])
        known = self._jobs.get(key)
        if known is not None and known["metadata"]["uid"] == job["metadata"]["uid"]:
            del self._jobs[key]
        return key

    def forget_job(self, key: Key) -> None:
        """Forget a job that was found to be gone."""
        self._jobs.pop(key, None)

    def put_child(self, kind: str, child: Manifest) -> Key | None:
        """Take a child's state in, unless a newer one is known. Returns its job's key."""
        key = job_key(child)
        if key is None:
            return None
        known = self._children[kind].setdefault(key, {})
        name = child["metadata"]["name"]
        if _newer(child, known.get(name)):
            known[name] = child
        return key

    def drop_child(self, kind: str, child: Manifest) -> Key | None:
        """Forget a deleted child, unless one of its name has come since."""
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
        """Make the cache what a relist found, and keep what watches have brought since.

        Returns:
            Keys of all jobs that are or were known.
        """
        concerned = set(self._jobs) | set(self._children["Pod"])
        self._jobs = {k: j for k, j in self._jobs.items() if _since(j, snapshot.jobs)}
        for job in snapshot.jobs.items:
            self.put_job(job)
        for kind, listing in (("Pod", snapshot.pods), ("Service", snapshot.services)):
            self._children[kind] = {
                key: {name: c for name, c in known.items() if _since(c, listing)}
                for key, known in self._children[kind].items()
            }
            for child in listing.items:
                self.put_child(kind, child)
            self._children[kind] = {k: known for k, known in self._children[kind].items() if known}
        return concerned | set(self._jobs)


def _since(known: Manifest, listing: Listing) -> bool:
    return int(known["metadata"]["resourceVersion"]) > listing.version


def job_key(child: Manifest) -> Key | None:
    """Key of the job that a child belongs to, by its label."""
    metadata = child["metadata"]
    name = (metadata.get("labels") or {}).get(contract.LABEL_JOB_NAME)
    return (metadata["namespace"], name) if name else None


def _newer(new: Manifest, old: Manifest | None) -> bool:
    """Whether to prefer `new`: resource versions of one object grow."""
    if old is None or new["metadata"]["uid"] != old["metadata"]["uid"]:
        return True
    return int(new["metadata"]["resourceVersion"]) >= int(old["metadata"]["resourceVersion"])
