"""Cache of jobs and their children, filled by watches and by answers of the API server.

Watches deliver events late, and an answer to a request may be older or newer than the last event. A
resource version alone cannot order the two, because versions decrease when etcd is restored from a
backup. So each request opens a `PendingRequest` before it is sent, which records the events that
arrive until the answer. The answer replaces everything that was known before the request. Its
version is compared only with events that arrived after the request. Of two watch events, the newer
version wins.

Decisions therefore never see an object older than the operator's own last write.

The cache holds no job of another controller (`spec.managedBy`). Workers, metrics and the index of
directories read jobs only from the cache, so they never see such a job.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from ddp_operator.builders.kinds import KINDS
from ddp_operator.cluster.base import ClusterSnapshot, Key, Listing, Manifest
from ddp_operator.runtime.directories import Directories
from ddp_operator.runtime.host_ports import HostPorts
from ddp_operator.runtime.ownership import is_foreign
from ddp_operator.runtime.pod_places import PodPlaces
from ddp_wire import contract

_JOB = "DDPJob"
_ObjectKey = tuple[str, str, str]
"""Kind, namespace and name of an object."""


@dataclass
class _Contents:
    """Contents of the cache, which the cache and its pending requests share."""

    jobs: dict[Key, Manifest] = field(default_factory=dict)
    children: dict[str, dict[Key, dict[str, Manifest]]] = field(
        default_factory=lambda: {kind: {} for kind in KINDS}
    )
    listed_version: int = 0
    """Resource version of the last list of jobs."""
    restored: asyncio.Event = field(default_factory=asyncio.Event)
    pending: set["PendingRequest"] = field(default_factory=set)
    """Requests that have not yet been answered."""
    directories: Directories = field(default_factory=Directories)
    """Index of the owners of all checkpoint directories."""
    host_ports: HostPorts = field(default_factory=HostPorts)
    """Index of the host ports of all jobs."""
    places: PodPlaces = field(default_factory=PodPlaces)
    """Index of the Kubernetes nodes of all living pods."""

    def store_job(self, job: Manifest) -> None:
        """Store a job, or remove the stored one if another controller manages the job."""
        key = _job_key(job)
        if is_foreign(job):
            self.remove_job(key)
            return
        self.jobs[key] = job
        self.directories.put(key, job)
        self.host_ports.put(key, job)

    def remove_job(self, key: Key) -> None:
        """Remove the job with a key, if it is stored."""
        if self.jobs.pop(key, None) is not None:
            self.directories.drop(key)
            self.host_ports.drop(key)

    def store_child(self, kind: str, key: Key, child: Manifest) -> None:
        """Store a child of a job, and replace the stored version."""
        known, name = self.children[kind].setdefault(key, {}), child["metadata"]["name"]
        if kind == "Pod":
            self.places.move(key, name, known.get(name), child)
        known[name] = child

    def remove_child(self, kind: str, key: Key, name: str) -> None:
        """Remove a child of a job, if it is stored."""
        known = self.children[kind][key]
        if kind == "Pod":
            self.places.move(key, name, known[name], None)
        del known[name]

    def record_change(
        self, kind: str, changed: Manifest, *, deleted: bool = False, by: "PendingRequest | None"
    ) -> None:
        """Record a watch event, or an object in an answer, in all other pending requests."""
        for request in self.pending - {by}:
            request.record_change(kind, changed, deleted=deleted)


class Cache:
    """Newest known jobs and children, by job key.

    The cache can lag behind the API server, so every write checks the object's version. An equal
    object does not replace the stored one. Otherwise each relist would replace all objects and
    fragment the memory.
    """

    def __init__(self) -> None:
        self._contents = _Contents()
        self._jobs, self._children = self._contents.jobs, self._contents.children
        self.directories, self.places = self._contents.directories, self._contents.places
        self.host_ports = self._contents.host_ports
        self.restored = self._contents.restored
        """Event that is set once the API server returns older versions than before, as after a
        restore of etcd."""

    def job(self, key: Key) -> Manifest | None:
        """Return the job with a key, or None."""
        return self._jobs.get(key)

    def keys(self) -> list[Key]:
        """Return the keys of all jobs."""
        return list(self._jobs)

    def jobs(self) -> list[Manifest]:
        """Return all jobs. Any thread may call it."""
        return list(self._jobs.values())

    def children(self, kind: str, key: Key) -> list[Manifest]:
        """Return a job's children of one kind, even those of earlier jobs with the same name."""
        return list(self._children[kind].get(key, {}).values())

    def put_job(self, job: Manifest) -> Key:
        """Store a job from a watch unless a newer version is stored. Return the job's key."""
        key = _job_key(job)
        self._contents.record_change(_JOB, job, by=None)
        known = self._jobs.get(key)
        if job != known and _is_newer(job, known):
            self._contents.store_job(job)
        return key

    def drop_job(self, job: Manifest) -> Key:
        """Remove a deleted job, but not a later job with the same name. Return the job's key."""
        key = _job_key(job)
        self._contents.record_change(_JOB, job, deleted=True, by=None)
        known = self._jobs.get(key)
        if known is not None and known["metadata"]["uid"] == job["metadata"]["uid"]:
            self._contents.remove_job(key)
        return key

    def forget_job(self, key: Key) -> None:
        """Remove the job with a key, if it is stored."""
        self._contents.remove_job(key)

    def put_child(self, kind: str, child: Manifest) -> Key | None:
        """Store a child from a watch unless a newer version is stored. Return its job's key."""
        key = job_key(child)
        if key is None:
            return None
        self._contents.record_change(kind, child, by=None)
        known = self._children[kind].get(key, {}).get(child["metadata"]["name"])
        if child != known and _is_newer(child, known):
            self._contents.store_child(kind, key, child)
        return key

    def drop_child(self, kind: str, child: Manifest) -> Key | None:
        """Remove a deleted child, but not a later child with the same name.

        Returns:
            Key of the child's job.
        """
        key = job_key(child)
        if key is None:
            return None
        self._contents.record_change(kind, child, deleted=True, by=None)
        known = self._children[kind].get(key, {})
        name = child["metadata"]["name"]
        if name in known and known[name]["metadata"]["uid"] == child["metadata"]["uid"]:
            self._contents.remove_child(kind, key, name)
        if not known:
            self._children[kind].pop(key, None)
        return key

    def replace(self, snapshot: ClusterSnapshot) -> set[Key]:
        """Replace the contents by a relist. No watch event may have arrived since the list request.

        Returns:
            Keys of all jobs in the old and the new contents.
        """
        with self.pending_request() as relist:
            return relist.replace(snapshot)

    @contextmanager
    def pending_request(self) -> Iterator["PendingRequest"]:
        """Enter this context before a request, and store the answer before leaving it."""
        request = PendingRequest(self._contents)
        self._contents.pending.add(request)
        try:
            yield request
        finally:
            self._contents.pending.discard(request)


class PendingRequest:
    """A sent request to the API server, with all events and answers that arrived since then.

    The answer replaces what the cache knew before the request, even a higher resourceVersion. The
    versions of an API server decrease when its etcd is restored from a backup. The answer may be
    older than an event that arrived since the request, so their versions are compared.
    """

    def __init__(self, contents: "_Contents") -> None:
        """Create a record of a request whose answer is stored in the contents of a cache."""
        self._contents = contents
        self._changed: set[_ObjectKey] = set()
        self._deleted_uids: set[str] = set()

    def record_change(self, kind: str, changed: Manifest, *, deleted: bool) -> None:
        """Record a watch event or another answer that arrived since the request."""
        self._changed.add(_object_key(kind, changed))
        if deleted:
            self._deleted_uids.add(changed["metadata"]["uid"])

    def put_job(self, job: Manifest) -> None:
        """Store a job from the answer."""
        known = self._contents.jobs.get(_job_key(job))
        if not self._wins(_JOB, job, known):
            return
        if known is not None and not _is_newer(job, known):
            self._contents.restored.set()
        if job != known:
            self._contents.store_job(job)
        self._contents.record_change(_JOB, job, by=self)

    def forget_job(self, key: Key) -> None:
        """Remove a job that the API server does not have."""
        if (_JOB, *key) not in self._changed:
            self._contents.remove_job(key)

    def put_child(self, kind: str, child: Manifest) -> bool:
        """Store a child from the answer. Return whether it differs from the stored one."""
        key = job_key(child)
        if key is None:
            return False
        name = child["metadata"]["name"]
        known = self._contents.children[kind].get(key, {}).get(name)
        if not self._wins(kind, child, known):
            return False
        if child != known:
            self._contents.store_child(kind, key, child)
        self._contents.record_change(kind, child, by=self)
        return child != known

    def replace(self, snapshot: ClusterSnapshot) -> set[Key]:
        """Replace the contents of the cache by a relist.

        Returns:
            Keys of all jobs in the old and the new contents.
        """
        contents = self._contents
        affected = set(contents.jobs) | set(contents.children["Pod"])
        if snapshot.jobs.version < contents.listed_version:
            contents.restored.set()
        contents.listed_version = snapshot.jobs.version
        listed = {_job_key(job) for job in snapshot.jobs.items}
        for key, known in list(contents.jobs.items()):
            if key not in listed and not self._outlives(_JOB, known, snapshot.jobs):
                contents.remove_job(key)
        for job in snapshot.jobs.items:
            self.put_job(job)
        for kind, listing in snapshot.children.items():
            self._replace_children(kind, listing, list(contents.children[kind]), {})
        return affected | set(contents.jobs)

    def replace_pods(self, key: Key, labels: Mapping[str, str], listing: Listing) -> None:
        """Replace the pods of a job that have these labels by the listed pods."""
        self._replace_children("Pod", listing, [key], labels)

    def replace_kind(self, kind: str, namespace: str | None, listing: Listing) -> set[Key]:
        """Replace the children of a kind, in one namespace or in all, by the listed children.

        Returns:
            Keys of the jobs whose children have changed.
        """
        known = self._contents.children[kind]
        keys = [key for key in known if namespace is None or key[0] == namespace]
        return self._replace_children(kind, listing, keys, {})

    def _replace_children(
        self, kind: str, listing: Listing, keys: Iterable[Key], labels: Mapping[str, str]
    ) -> set[Key]:
        """Replace the children of these jobs that have these labels. Return the changed keys."""
        changed: set[Key] = set()
        contents = self._contents
        children = contents.children[kind]
        unchanged = {_object_key(kind, child) for child in listing.items} - self._changed
        uids = {child["metadata"]["uid"] for child in listing.items}
        for key in keys:
            known = children.get(key, {})
            for name, child in list(known.items()):
                selected = labels.items() <= (child["metadata"].get("labels") or {}).items()
                listed = _object_key(kind, child) in unchanged
                if selected and not listed and not self._outlives(kind, child, listing):
                    contents.remove_child(kind, key, name)
                    changed.add(key)
                    if child["metadata"]["uid"] not in uids:  # No older answer brings it back.
                        contents.record_change(kind, child, deleted=True, by=self)
            if not known:
                children.pop(key, None)
        for child in listing.items:
            owner = job_key(child)
            if self.put_child(kind, child) and owner is not None:
                changed.add(owner)
        return changed

    def _wins(self, kind: str, answer: Manifest, known: Manifest | None) -> bool:
        """Return whether an object from the answer replaces the stored one."""
        if answer["metadata"]["uid"] in self._deleted_uids:
            return False
        if known is None or _object_key(kind, answer) not in self._changed:
            return True
        return _version(answer) >= _version(known)

    def _outlives(self, kind: str, known: Manifest, listing: Listing) -> bool:
        """Return whether a stored object was created or changed after a list was made."""
        return _object_key(kind, known) in self._changed and _version(known) > listing.version


def job_key(child: Manifest) -> Key | None:
    """Return the key of the job that a child's label names, or None without this label."""
    metadata = child["metadata"]
    name = (metadata.get("labels") or {}).get(contract.LABEL_JOB_NAME)
    return (metadata["namespace"], name) if name else None


def _job_key(job: Manifest) -> Key:
    return (job["metadata"]["namespace"], job["metadata"]["name"])


def _object_key(kind: str, manifest: Manifest) -> _ObjectKey:
    return (kind, manifest["metadata"]["namespace"], manifest["metadata"]["name"])


def _version(manifest: Manifest) -> int:
    return int(manifest["metadata"]["resourceVersion"])


def _is_newer(new: Manifest, old: Manifest | None) -> bool:
    """Return whether event `new` replaces `old`. Compare versions only of the same uid."""
    if old is None or new["metadata"]["uid"] != old["metadata"]["uid"]:
        return True
    return _version(new) >= _version(old)
