"""In-memory API server with resource versions, conflicts, uid preconditions and taken names.

It can kill the controller at its k-th write, before or after the write takes effect.
"""

import itertools
import pickle
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from ddp_operator.builders.kinds import KINDS, row_name
from ddp_operator.cluster.base import (
    AgentAnswer,
    ClusterError,
    ClusterSnapshot,
    ConflictError,
    Key,
    Listing,
    Manifest,
    NameTakenError,
)
from ddp_operator.reconcile.claims import CLAIM
from ddp_operator.reconcile.plan import Event
from ddp_operator.reconcile.pod_view import PodView
from ddp_operator.runtime.cache import Cache
from ddp_wire import contract
from ddp_wire.messages import AgentStatus, AttemptOrder, InspectionRequest
from tests.operator.fake_config_maps import FakeConfigMaps, merged
from tests.scenarios.pods import TERMINAL

T = TypeVar("T")


def _copied(value: T) -> T:
    """Return a deep copy of JSON. pickle takes a tenth of the time of copy.deepcopy."""
    copied: T = pickle.loads(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))  # noqa: S301
    return copied


class Killed(BaseException):
    """Simulated death of the controller process."""


class FakeCluster:
    """In-memory implementation of `Cluster`. All arguments and results are copied."""

    def __init__(self) -> None:
        self._versions = itertools.count(1)
        self._uids = itertools.count(1)
        self.jobs: dict[Key, Manifest] = {}
        self.children: dict[str, dict[Key, Manifest]] = {kind: {} for kind in KINDS}
        self.agents: dict[str, AgentStatus] = {}
        """Agent statuses by pod uid."""
        self.writes: list[str] = []
        """All attempted writes, as `verb kind name`."""
        self.statuses: list[Manifest] = []
        """All statuses that were written."""
        self.events: list[Event] = []
        self.warnings: dict[str, str] = {}
        """Newest warning Events by the uid of their pod."""
        self.warning_reads: list[str] = []
        """Uids of the pods whose Events were read."""
        self.warnings_error: ClusterError | None = None
        self.queue_messages: dict[str, str] = {}
        """Reasons why Kueue does not admit groups, by group."""
        self.deleted_workloads: list[str] = []
        self.queue_reads: list[str] = []
        """Groups whose Workload was read."""
        self.queue_error: ClusterError | None = None
        self.orders: list[tuple[str, int, AttemptOrder]] = []
        """Attempt orders that were sent to agents, with the address."""
        self.questions: list[tuple[list[str], InspectionRequest]] = []
        """Users' questions that were sent to agents, with the names of the pods."""
        self.refusals: dict[str, ClusterError] = {}
        """Errors to raise, by the prefix of the write."""
        self.watching: Cache | None = None
        """Cache that gets every change at once, or None for a cache that lags behind."""
        self.after_write: Callable[[], None] = lambda: None
        self.config_maps = FakeConfigMaps(self._write)
        self._kill: tuple[int, bool] | None = None
        self._dead = False

    def kill_at(self, write: int, *, after: bool) -> None:
        """Kill the controller at a write, counted from 1."""
        self._kill = (write, after)

    def revive(self) -> None:
        """Accept requests again, from a new controller process that is not killed."""
        self._kill, self._dead = None, False

    def _write(self, what: str, effect: Callable[[], T]) -> T:
        if self._dead:
            raise Killed(what)
        self.writes.append(what)
        is_target, after = False, False
        if self._kill is not None:
            is_target, after = len(self.writes) == self._kill[0], self._kill[1]
        self._dead = is_target
        if is_target and not after:
            raise Killed(what)
        for prefix, error in self.refusals.items():
            if what.startswith(prefix):
                raise error
        outcome = effect()
        self.after_write()
        if is_target:
            raise Killed(what)
        return outcome

    # --- Changes by users and kubelets ------------------------------------------------------------

    def apply(self, job: Manifest) -> Manifest:
        """Create a job or replace its spec, as a user does."""
        key = _key(job)
        known = self.jobs.get(key)
        metadata = {**job["metadata"]}
        if known is not None:
            metadata = {**known["metadata"], "generation": known["metadata"]["generation"] + 1}
        status = known.get("status", {}) if known else {}
        return self._store_job({**_copied(job), "metadata": metadata, "status": status})

    def annotate_job(self, key: Key, annotations: Mapping[str, str]) -> Manifest:
        """Replace the annotations of a job, as a user does."""
        metadata = {**self.jobs[key]["metadata"], "annotations": dict(annotations)}
        return self._store_job({**self.jobs[key], "metadata": metadata})

    def change_pod(self, name: str, **status: object) -> Manifest:
        """Change the status of a pod, as its kubelet does."""
        found = self.pod(name)
        found["status"] = {**found["status"], **status}
        return self._store_child("Pod", found)

    def mark_deleted(self, name: str, deadline: datetime, grace_seconds: int) -> None:
        """Begin the deletion of a pod, as the API server does. Its kubelet does not end it."""
        found = self.pod(name)
        found["metadata"] |= {
            "deletionTimestamp": deadline.isoformat(),
            "deletionGracePeriodSeconds": grace_seconds,
        }
        self._store_child("Pod", found)

    def remove_pod(self, name: str) -> None:
        """Remove the pod object."""
        self._drop_child("Pod", self.pod(name))

    def change_claim(self, name: str, **status: object) -> Manifest:
        """Change the status of a claim, as its provisioner does."""
        [found] = [c for c in self.children[CLAIM].values() if c["metadata"]["name"] == name]
        return self._store_child(CLAIM, {**found, "status": {**found["status"], **status}})

    def change_owner(self, kind: str, name: str, uid: str) -> None:
        """Give a child another owner, as somebody with permission to edit it can."""
        [found] = [c for c in self.children[kind].values() if c["metadata"]["name"] == name]
        owned = {**found["metadata"], "ownerReferences": [{"uid": uid}]}
        self._store_child(kind, {**found, "metadata": owned})

    def pod(self, name: str) -> Manifest:
        return next(_copied(p) for p in self.pods() if p["metadata"]["name"] == name)

    def pods(self) -> list[Manifest]:
        return list(self.children["Pod"].values())

    def living(self) -> list[Manifest]:
        return [p for p in self.pods() if p["status"]["phase"] not in TERMINAL]

    def snapshot(self) -> ClusterSnapshot:
        version = next(self._versions)

        def listing(objects: dict[Key, Manifest]) -> Listing:
            return Listing(_copied(list(objects.values())), version)

        return ClusterSnapshot(listing(self.jobs), {k: listing(self.children[k]) for k in KINDS})

    # --- `Cluster` ------------------------------------------------------------------------------

    async def get_job(self, key: Key) -> Manifest | None:
        return _copied(self.jobs.get(key))

    async def list_pods(
        self,
        namespace: str,
        labels: Mapping[str, str],
        expected: int,  # noqa: ARG002
    ) -> Listing:
        found = [
            _copied(p)
            for p in self.pods()
            if p["metadata"]["namespace"] == namespace
            and labels.items() <= p["metadata"]["labels"].items()
        ]
        return Listing(found, next(self._versions))

    async def create(
        self, manifest: Manifest, on_restored: Callable[[str], None] = lambda _: None
    ) -> Manifest:
        del on_restored
        kind, name = row_name(manifest), manifest["metadata"]["name"]

        def effect() -> Manifest:
            known = self.children[kind].get(_key(manifest))
            if known is None:
                created = _copied(manifest)
                created["metadata"]["uid"] = f"{name}#{next(self._uids)}"
                created["status"] = {"phase": "Pending"} if kind == "Pod" else {}
                if kind == "Pod":
                    created["spec"]["nodeName"] = f"machine-{name.rpartition('-')[2]}"
                return self._store_child(kind, created)
            if _owner(known) != _owner(manifest) or _job_uid(known) != _job_uid(manifest):
                raise NameTakenError(f"{kind} {name} exists already and is not this job's")
            return _copied(known)

        return self._write(f"create {kind} {name}", effect)

    async def delete_pod(
        self, namespace: str, name: str, uid: str, grace_seconds: int | None
    ) -> None:
        def effect() -> None:
            known = self.children["Pod"].get((namespace, name))
            if known is None or known["metadata"]["uid"] != uid:
                return
            if grace_seconds == 0 or known["status"]["phase"] in TERMINAL:
                self._drop_child("Pod", known)
            elif "deletionTimestamp" not in known["metadata"]:
                marked = {**known["metadata"], "deletionTimestamp": "2026-03-01T12:00:00Z"}
                self._store_child("Pod", {**known, "metadata": marked})

        self._write(f"delete Pod {name}", effect)

    async def delete_child(self, kind: str, namespace: str, name: str, uid: str) -> None:
        def effect() -> None:
            known = self.children[kind].get((namespace, name))
            if known is not None and known["metadata"]["uid"] == uid:
                self._drop_child(kind, known)

        self._write(f"delete {kind} {name}", effect)

    async def patch_claim(
        self, namespace: str, name: str, uid: str, patch: Mapping[str, Any]
    ) -> Manifest | None:
        def effect() -> Manifest | None:
            known = self.children[CLAIM].get((namespace, name))
            if known is None or known["metadata"]["uid"] != uid:
                return None
            return self._store_child(CLAIM, merged(_copied(known), patch))

        return self._write(f"patch {CLAIM} {name}", effect)

    async def annotate_pod(
        self, namespace: str, name: str, uid: str, annotations: Mapping[str, str]
    ) -> Manifest | None:
        def effect() -> Manifest | None:
            known = self.children["Pod"].get((namespace, name))
            if known is None or known["metadata"]["uid"] != uid:
                return None
            changed = _copied(known)
            changed["metadata"]["annotations"] |= annotations
            return self._store_child("Pod", changed)

        value = annotations.get(contract.ANNOTATION_ATTEMPT)
        return self._write(f"annotate Pod {name} {value}", effect)

    async def end_pod(self, namespace: str, name: str, uid: str) -> None:
        def effect() -> None:
            known = self.children["Pod"].get((namespace, name))
            if known is not None and known["metadata"]["uid"] == uid:
                self._store_child(
                    "Pod", {**known, "status": {**known["status"], "phase": "Failed"}}
                )

        self._write(f"end Pod {name}", effect)

    async def delete_job(self, key: Key, uid: str) -> None:
        def effect() -> None:
            known = self.jobs.get(key)
            if known is None or known["metadata"]["uid"] != uid:
                return
            del self.jobs[key]
            if self.watching is not None:
                self.watching.drop_job(known)
            for kind, children in self.children.items():  # As the garbage collector does.
                for child in [c for c in children.values() if _owner(c) == uid]:
                    self._drop_child(kind, child)

        self._write(f"delete DDPJob {key[1]}", effect)

    async def write_status(self, job: Manifest, status: Manifest) -> Manifest:
        def effect() -> Manifest:
            known = self.jobs.get(_key(job))
            same = ("uid", "resourceVersion")
            if known is None or any(known["metadata"][k] != job["metadata"][k] for k in same):
                raise ConflictError("the object has been modified", status=409)
            self.statuses.append(_copied(status))
            return self._store_job({**known, "status": _copied(status)})

        return self._write(f"status {job['metadata']['name']}", effect)

    async def emit(self, job: Manifest, event: Event) -> None:
        self._write(f"event {job['metadata']['name']}", lambda: self.events.append(event))

    async def newest_warning(self, namespace: str, uid: str) -> str | None:
        del namespace
        self.warning_reads.append(uid)
        if self.warnings_error is not None:
            raise self.warnings_error
        return self.warnings.get(uid)

    async def newest_event(self, namespace: str, uid: str) -> str | None:
        return await self.newest_warning(namespace, uid)

    async def queue_message(self, namespace: str, group: str) -> str:
        del namespace
        self.queue_reads.append(group)
        if self.queue_error is not None:
            raise self.queue_error
        return self.queue_messages.get(group, "")

    async def delete_workload(self, namespace: str, group: str) -> None:
        del namespace
        self._write(f"delete Workload {group}", lambda: self.deleted_workloads.append(group))

    async def watch_agent_status(self, pod: PodView, revision: int, seconds: float) -> AgentAnswer:
        """Return at once, unlike a real agent. The caller retries."""
        del seconds
        status = self.agents.get(pod.uid)
        changed = status is None or status.revision != revision
        return AgentAnswer(status if changed else None)

    def send_order(self, address: str, port: int, secret: str, order: AttemptOrder) -> None:
        del secret
        self.orders.append((address, port, order))

    def send_inspection(self, pods: Sequence[PodView], request: InspectionRequest) -> None:
        self.questions.append(([pod.name for pod in pods], request))

    # --- Storage ----------------------------------------------------------------------------------

    def _store_job(self, job: Manifest) -> Manifest:
        stamped = self._stamped(job)
        self.jobs[_key(job)] = stamped
        if self.watching is not None:
            self.watching.put_job(_copied(stamped))
        return _copied(stamped)

    def _store_child(self, kind: str, child: Manifest) -> Manifest:
        stamped = self._stamped(child)
        self.children[kind][_key(child)] = stamped
        if self.watching is not None:
            self.watching.put_child(kind, _copied(stamped))
        return _copied(stamped)

    def _drop_child(self, kind: str, child: Manifest) -> None:
        del self.children[kind][_key(child)]
        self.agents.pop(child["metadata"]["uid"], None)
        if self.watching is not None:
            self.watching.drop_child(kind, child)

    def _stamped(self, manifest: Manifest) -> Manifest:
        stamp = {"resourceVersion": str(next(self._versions))}
        return {**_copied(manifest), "metadata": {**manifest["metadata"], **stamp}}


def _key(manifest: Manifest) -> Key:
    return manifest["metadata"]["namespace"], manifest["metadata"]["name"]


def _owner(child: Manifest) -> str | None:
    """Return the uid of the first owner, or None for a claim that its job does not own."""
    owners = child["metadata"].get("ownerReferences") or [{}]
    uid: str | None = owners[0].get("uid")
    return uid


def _job_uid(child: Manifest) -> str | None:
    uid: str | None = child["metadata"]["labels"].get(contract.LABEL_JOB_UID)
    return uid
