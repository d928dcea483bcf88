"""Stand-in for Kueue: it plays the rules by which Kueue treats plain pods and groups of pods.

Kueue itself does not run here. The stand-in follows the source of Kueue 0.20: what its webhook adds
to a pod, when a Workload exists and is admitted, which pods it deletes as excess, how long it keeps
ended pods, and how it evicts. It counts nodes as the only resource, and has no topology, no cohorts
and no preemption of its own: a test decides on evictions.

`Kueue` only decides. Its caller applies the moves, in memory or on a real API server, and plays the
webhook.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ddp_operator.builders.gangs.kueue import (
    GROUP,
    MANAGED,
    NOT_RETRIABLE,
    QUEUE,
    RETRIABLE,
    ROLE,
    SIZE,
)
from tests.scenarios.pods import TERMINAL

Manifest = dict[str, Any]

GATE = {"name": "kueue.x-k8s.io/admission"}
"""Scheduling gate that Kueue's webhook adds to a pod."""
ADMITTED_SELECTOR = {"pool": "admitted"}
"""Node selector that the stand-in adds at the admission, as a ResourceFlavor does."""


@dataclass(frozen=True)
class Ungate:
    """A move: remove the gate of an admitted pod and add the flavor's node selector."""

    pod: Manifest


@dataclass(frozen=True)
class Release:
    """A move: remove Kueue's finalizer."""

    pod: Manifest


@dataclass(frozen=True)
class Stop:
    """A move: set the condition TerminationTarget and delete the pod."""

    pod: Manifest
    reason: str
    message: str


Move = Ungate | Release | Stop


@dataclass
class Workload:
    """Admission of a group or of one pod."""

    name: str
    size: int
    role: str
    admitted: bool = False
    evicted: str = ""
    """Reason of the last eviction, or "" after a new admission."""
    succeeded: int = 0
    """Number of pods that have succeeded, whose quota is free again."""

    @property
    def quota(self) -> int:
        """Return the number of nodes that the Workload holds."""
        return self.size - self.succeeded if self.admitted else 0


@dataclass
class Kueue:
    """One ClusterQueue with its LocalQueue."""

    quota: int
    """Number of nodes."""
    stopped: bool = False
    """Whether the ClusterQueue is stopped, so that it admits nothing."""
    workloads: dict[str, Workload] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    """What Kueue had to correct, because the operator broke a rule of the groups."""
    evictions: int = 0
    """Evictions that the test asked for."""

    def step(self, pods: Iterable[Manifest]) -> list[Move]:
        """Return the moves of one reconcile of all Workloads."""
        groups: dict[str, list[Manifest]] = {}
        for pod in pods:
            if QUEUE in pod["metadata"]["labels"]:
                groups.setdefault(workload_of(pod), []).append(pod)
        for name in [name for name in self.workloads if name not in groups]:
            del self.workloads[name]  # The garbage collector deletes it with its last pod.
        moves: list[Move] = []
        # Groups first: they have the higher priority.
        for name in sorted(groups, key=lambda one: GROUP not in _labels(groups[one][0])):
            members = groups[name]
            grouped = GROUP in _labels(members[0])
            moves += self._of_group(name, members) if grouped else self._of_pod(name, members[0])
        return moves

    def evict(self, name: str, pods: Iterable[Manifest], reason: str) -> list[Move]:
        """Return the moves that evict a Workload."""
        workload = self.workloads[name]
        workload.admitted, workload.evicted = False, reason
        self.evictions += 1
        mine = [pod for pod in pods if workload_of(pod) == name]
        message = f"{reason} by the test"
        return [Stop(pod, "WorkloadEvicted", message) for pod in mine if _may_stop(pod)]

    def delete(self, name: str, pods: Iterable[Manifest]) -> list[Move]:
        """Return the moves after somebody has deleted a Workload: its pods stop, and are free."""
        self.workloads.pop(name, None)
        mine = [pod for pod in pods if workload_of(pod) == name]
        stops = [Stop(p, "WorkloadDeleted", "deleted") for p in mine if not _is_deleting(p)]
        return [*stops, *(Release(pod) for pod in mine if _is_held(pod))]

    def _of_group(self, name: str, pods: Sequence[Manifest]) -> list[Move]:
        sizes = {pod["metadata"]["annotations"][SIZE] for pod in pods}
        if len(sizes) > 1:
            self.faults.append(f"{name}: the pods have different total counts: {sorted(sizes)}")
            return []
        size = int(sizes.pop())
        inactive = sorted((p for p in pods if _is_inactive(p)), key=_age)
        active = sorted((p for p in pods if not _is_inactive(p)), key=_excess_order)
        if _is_finished(pods, size):
            if name in self.workloads:
                self.workloads[name].admitted = False
            return [Release(pod) for pod in pods if _is_held(pod)]
        if len(active) > size:
            surplus = active[size:]
            names = [pod["metadata"]["name"] for pod in surplus]
            self.faults.append(f"{name}: {len(active)} active pods of {size}, deletes {names}")
            return [Stop(pod, "ExcessPod", "the group has too many pods") for pod in surplus]
        workload = self.workloads.get(name)
        if workload is None and len(active) == size:
            workload = self.workloads[name] = Workload(name, size, role_of(active[0]))
        if workload is None:
            # A group without a Workload whose pods are all deleted is released.
            is_over = all(_is_deleting(pod) for pod in pods)
            return [Release(pod) for pod in pods if is_over and _is_held(pod)]
        if roles := {role_of(pod) for pod in active} - {workload.role}:
            self.faults.append(f"{name}: the Workload is deleted, pods have the roles {roles}")
            del self.workloads[name]
            return [Stop(p, "NoMatchingWorkload", "the roles differ") for p in active]
        workload.succeeded = sum(p["status"]["phase"] == "Succeeded" for p in active)
        # It keeps as many ended pods as successors are missing.
        replaced = inactive[: max(0, len(active) + len(inactive) - size)]
        moves: list[Move] = [Release(pod) for pod in replaced if _is_held(pod)]
        return moves + self._admission(workload, active)

    def _of_pod(self, name: str, pod: Manifest) -> list[Move]:
        if pod["status"]["phase"] in TERMINAL or _is_inactive(pod):
            self.workloads.pop(name, None)
            return [Release(pod)] if _is_held(pod) else []
        workload = self.workloads.setdefault(name, Workload(name, 1, role_of(pod)))
        return self._admission(workload, [pod])

    def _admission(self, workload: Workload, active: Sequence[Manifest]) -> list[Move]:
        """Return the moves that follow from the admission, after the queue has decided on it."""
        if not workload.admitted:
            running = [pod for pod in active if not is_gated(pod) and _may_stop(pod)]
            if running:
                return [Stop(pod, "NotAdmitted", "the Workload is not admitted") for pod in running]
            ready = [pod for pod in active if is_gated(pod) and not _is_deleting(pod)]
            free = self.quota - sum(one.quota for one in self.workloads.values())
            if self.stopped or len(ready) < workload.size or free < workload.size:
                return []
            workload.admitted, workload.evicted = True, ""
        return [Ungate(pod) for pod in active if is_gated(pod) and not _is_deleting(pod)]


def workload_of(pod: Manifest) -> str:
    """Return the name of the Workload of a pod: its group, or the pod itself."""
    return str(_labels(pod).get(GROUP) or f"pod-{pod['metadata']['name']}")


def webhook(pod: Manifest) -> Manifest:
    """Return a new pod as Kueue's webhook changes it, within the request that creates the pod."""
    metadata, spec = pod["metadata"], pod["spec"]
    changed = {
        "labels": {**metadata["labels"], MANAGED: "true"},
        "annotations": {ROLE: role_of(pod), **metadata["annotations"]},
        "finalizers": [MANAGED],
    }
    gates = [*spec.get("schedulingGates", ()), GATE]
    return {**pod, "metadata": {**metadata, **changed}, "spec": {**spec, "schedulingGates": gates}}


def role_of(pod: Manifest) -> str:
    """Return the role of a pod: its annotation, or else a hash of what decides on its placement."""
    annotations = pod["metadata"]["annotations"]
    if ROLE in annotations:
        return str(annotations[ROLE])
    spec = pod["spec"]
    shape = [spec.get(key) for key in ("affinity", "nodeSelector", "tolerations", "priority")]
    shape.append([container.get("resources") for container in spec["containers"]])
    return hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:8]


def is_gated(pod: Manifest) -> bool:
    """Return whether a scheduling gate holds a pod."""
    return bool(pod["spec"].get("schedulingGates"))


def _labels(pod: Manifest) -> Manifest:
    labels: Manifest = pod["metadata"]["labels"]
    return labels


def _is_held(pod: Manifest) -> bool:
    return MANAGED in pod["metadata"].get("finalizers", ())


def _is_deleting(pod: Manifest) -> bool:
    return pod["metadata"].get("deletionTimestamp") is not None


def _may_stop(pod: Manifest) -> bool:
    return pod["status"]["phase"] not in TERMINAL and not _is_deleting(pod)


def _is_inactive(pod: Manifest) -> bool:
    """Return whether a pod no longer counts: it has failed, or was deleted without a node."""
    never_ran = _is_deleting(pod) and "nodeName" not in pod["spec"]
    return pod["status"]["phase"] == "Failed" or never_ran


def _is_finished(pods: Sequence[Manifest], size: int) -> bool:
    """Return whether a group is over. A pod that is deleted behind its gate never ends."""
    phases = [pod["status"]["phase"] for pod in pods]
    retriable = all(p["metadata"]["annotations"].get(RETRIABLE) != NOT_RETRIABLE for p in pods)
    return phases.count("Succeeded") == size or (not retriable and TERMINAL.issuperset(phases))


def _age(pod: Manifest) -> tuple[str, int]:
    metadata = pod["metadata"]
    return str(metadata.get("creationTimestamp", "")), int(metadata["resourceVersion"])


def _excess_order(pod: Manifest) -> tuple[bool, tuple[str, int]]:
    """Return a key by which the pods that are deleted first as excess come last."""
    return is_gated(pod), _age(pod)
