"""An in-memory API server with a stand-in for Kueue, and runs of a job on it."""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from ddp_operator.api.gang import GangType
from ddp_operator.builders.gangs.kueue import GROUP, QUEUE
from ddp_operator.builders.gangs.versions import KUEUE, Gangs
from ddp_operator.cluster.base import Manifest, NameTakenError
from tests.operator.fake_cluster import FakeCluster
from tests.operator.simulation import KEY, Simulation
from tests.operator.support import GUARDED, NOW
from tests.scenarios.flows import Flow
from tests.scenarios.kueue import (
    ADMITTED_SELECTOR,
    Kueue,
    Move,
    Release,
    Stop,
    Ungate,
    webhook,
)
from tests.scenarios.kueue_runs import (
    LOST_NODE,
    Delete,
    Disturbance,
    Disturber,
    LoseNode,
    broken_rules,
    job_spec,
    script,
)
from tests.scenarios.pods import TERMINAL, EndContainer, RemovePod, ended_status

OFFERED = replace(GUARDED, gangs=Gangs(types=(GangType.KUEUE,), served=((GangType.KUEUE, KUEUE),)))
"""Defaults of an installation with Kueue."""
_GATED = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "SchedulingGated",
    "message": "Scheduling is blocked due to non-empty scheduling gates",
}
_MOST_ROUNDS = 20


class KueueCluster(FakeCluster):
    """An in-memory API server whose pods Kueue holds."""

    async def create(
        self, manifest: Manifest, on_restored: Callable[[str], None] = lambda _: None
    ) -> Manifest:
        is_pod = manifest["kind"] == "Pod" and QUEUE in manifest["metadata"]["labels"]
        return await super().create(webhook(manifest) if is_pod else manifest, on_restored)

    def _store_child(self, kind: str, child: Manifest) -> Manifest:
        gated = kind == "Pod" and child["spec"].get("schedulingGates")
        if gated and child["status"] == {"phase": "Pending"}:
            spec = {k: v for k, v in child["spec"].items() if k != "nodeName"}
            child = {**child, "spec": spec, "status": {"phase": "Pending", "conditions": [_GATED]}}
        return super()._store_child(kind, child)

    def _drop_child(self, kind: str, child: Manifest) -> None:
        if kind != "Pod" or not child["metadata"].get("finalizers"):
            super()._drop_child(kind, child)
            return
        self.agents.pop(child["metadata"]["uid"], None)
        deleted = {"deletionTimestamp": "2026-03-01T12:00:00Z", "deletionGracePeriodSeconds": 0}
        self._store_child(kind, {**child, "metadata": {**child["metadata"], **deleted}})

    def living(self) -> list[Manifest]:
        """Return the pods that run or can still run: a deleted pod without a node never can."""
        return [
            pod
            for pod in super().living()
            if "nodeName" in pod["spec"] or "deletionTimestamp" not in pod["metadata"]
        ]

    def delete(self, name: str, now: datetime) -> None:
        """Delete a pod, as a user does."""
        if "nodeName" in self.pod(name)["spec"]:
            self.mark_deleted(name, now, 60)
        else:
            self._drop_child("Pod", self.pod(name))

    def collect_garbage(self, uid: str) -> None:
        """Delete the children of a deleted job, as the garbage collector does."""
        for kind, children in self.children.items():
            for child in list(children.values()):
                if child["metadata"]["ownerReferences"][0]["uid"] != uid:
                    continue
                if kind == "Pod":
                    self.delete(child["metadata"]["name"], NOW)
                else:
                    self._drop_child(kind, child)

    def end_deleted(self, name: str) -> None:
        """Report the end of a deleted pod, and remove it unless a finalizer keeps it."""
        if self.pod(name)["status"]["phase"] not in TERMINAL:
            self.change_pod(name, phase="Failed")
        self._drop_child("Pod", self.pod(name))

    def apply_kueue(self, move: Move) -> None:
        """Change a pod as Kueue does."""
        name = move.pod["metadata"]["name"]
        if all(pod["metadata"]["name"] != name for pod in self.pods()):
            return
        found = self.pod(name)
        if isinstance(move, Ungate):
            selector = {**found["spec"].get("nodeSelector", {}), **ADMITTED_SELECTOR}
            spec = {k: v for k, v in found["spec"].items() if k != "schedulingGates"}
            node = f"machine-{move.pod['metadata']['labels']['ddp-trainer.dev/node-index']}"
            found["spec"] = {**spec, "nodeSelector": selector, "nodeName": node}
            found["status"] = {"phase": "Pending", "conditions": []}
            self._store_child("Pod", found)
        elif isinstance(move, Release):
            metadata = {k: v for k, v in found["metadata"].items() if k != "finalizers"}
            is_over = found["status"]["phase"] in TERMINAL or "nodeName" not in found["spec"]
            found = self._store_child("Pod", {**found, "metadata": metadata})
            if "deletionTimestamp" in metadata and is_over:
                self._drop_child("Pod", found)
        else:
            self._stop(found, move)

    def _stop(self, found: Manifest, move: Stop) -> None:
        target = {
            "type": "TerminationTarget",
            "status": "True",
            "reason": move.reason,
            "message": move.message,
        }
        conditions = [*found["status"].get("conditions", ()), target]
        found["status"] = {**found["status"], "conditions": conditions}
        self._store_child("Pod", found)
        if "nodeName" not in found["spec"]:
            self._drop_child("Pod", found)
        elif "deletionTimestamp" not in found["metadata"]:
            deleted = {**found["metadata"], "deletionTimestamp": "2026-03-01T12:00:00Z"}
            self._store_child("Pod", {**found, "metadata": deleted})


class KueueRun(Simulation):
    """Run of one job under Kueue, with random disturbances."""

    def __init__(
        self,
        name: str,
        seed: int = 0,
        disturbances: int = 0,
        *,
        quota: int = 8,
        writes_per_life: int = 0,
        **spec: Any,
    ) -> None:
        self.kueue = Kueue(quota)
        self._server = KueueCluster()
        flow = Flow(script(), 0, 0, "Completed", job_spec(name) | spec)
        super().__init__(
            flow, writes_per_life=writes_per_life, cluster=self._server, defaults=OFFERED
        )
        self._ends: dict[str, tuple[int, str]] = {}
        """Seconds until the phase of a pod shows its end, and that phase, by the pod's uid."""
        self.disturber = Disturber(seed, disturbances, self.kueue, self._pods)

    async def play(self, *, seconds: int) -> int:
        """Play until the job and its pods are gone. Return the simulated seconds."""
        for second in range(seconds):
            await self._settle()
            self._play_kueue()
            if KEY not in self.cluster.jobs and not self.cluster.pods():
                return second
            for disturbance in self.disturber.step(self.cluster.pods()):
                self.disturb(disturbance)
            if self.disturber.is_over:
                self._pods.finish_after(3)
            self._move_pods()
        pods = [
            (p["metadata"]["name"], p["status"], p["metadata"].get("finalizers"))
            for p in self.cluster.pods()
        ]
        raise AssertionError(f"not over after {seconds} s: {self.summary()}, {pods}")

    async def advance(self, seconds: int) -> None:
        """Let some simulated seconds pass without disturbances, and settle."""
        for _ in range(seconds):
            await self._settle()
            self._play_kueue()
            self._move_pods()
        await self._settle()
        self._play_kueue()

    def edit(self, **spec: Any) -> None:
        """Change the spec of the job, as a user does."""
        job = self.cluster.jobs[KEY]
        self.cluster.apply({**job, "spec": {**job["spec"], **spec}})

    def delete_job(self, *, recreate_as: str | None = None) -> None:
        """Delete the job, as a user does, and create it again with another uid if one is given."""
        job = self.cluster.jobs.pop(KEY)
        self._cache.drop_job(job)
        self._server.collect_garbage(job["metadata"]["uid"])
        if recreate_as is not None:
            metadata = {**job["metadata"], "uid": recreate_as}
            self.cluster.apply({**job, "metadata": metadata, "status": {}})

    def groups(self) -> set[str]:
        """Return the groups of all pods."""
        labels = [pod["metadata"]["labels"] for pod in self.cluster.pods()]
        return {one[GROUP] for one in labels if GROUP in one}

    def disturb(self, disturbance: Disturbance) -> None:
        """Let a pod be lost or stopped."""
        name = disturbance.pod["metadata"]["name"]
        if isinstance(disturbance, EndContainer):
            self._end(disturbance)
        elif isinstance(disturbance, LoseNode):
            self._server.change_pod(name, conditions=[LOST_NODE])
            self.cluster.mark_deleted(name, self.now, 60)
            self._ends[disturbance.pod["metadata"]["uid"]] = disturbance.seconds, "Failed"
        elif isinstance(disturbance, Delete):
            self._server.delete(name, self.now)
        else:
            self._server.apply_kueue(disturbance)

    def _end(self, move: EndContainer) -> None:
        """Report the end of a container, and a second later that of its pod, as a kubelet does."""
        status = ended_status(move.code, move.status)
        self._ends[move.pod["metadata"]["uid"]] = 1, status["phase"]
        self.cluster.change_pod(move.pod["metadata"]["name"], **{**status, "phase": "Running"})

    def _end_pods(self) -> None:
        """Report the ends of pods that are due."""
        known = {pod["metadata"]["uid"]: pod for pod in self.cluster.pods()}
        for uid, (seconds, phase) in list(self._ends.items()):
            pod = known.get(uid)
            if pod is not None and seconds > 0:
                self._ends[uid] = seconds - 1, phase
                continue
            del self._ends[uid]
            if pod is not None:
                name = pod["metadata"]["name"]
                self.cluster.change_pod(name, phase=phase)
                if "deletionTimestamp" in pod["metadata"]:
                    self._server.end_deleted(name)

    def _move_pods(self) -> None:
        self._end_pods()
        job = self.cluster.jobs.get(KEY)
        nodes = job["spec"]["nodes"] if job is not None else 0
        present = [p for p in self.cluster.pods() if p["metadata"]["uid"] not in self._ends]
        for move in self._pods.step(present, nodes, self.now):
            if isinstance(move, RemovePod):
                self._server.end_deleted(move.pod["metadata"]["name"])
            elif isinstance(move, EndContainer):
                self._end(move)
            else:
                self._apply(move)
        self.now += timedelta(seconds=1)

    def summary(self) -> str:
        """Return reason and message of the job."""
        conditions = self.cluster.statuses[-1]["conditions"]
        found = next(one for one in conditions if one["type"] == "Succeeded")
        return f"{found['reason']}: {found['message']}"

    def _play_kueue(self) -> None:
        for _ in range(_MOST_ROUNDS):
            moves: list[Move] = []
            while self.cluster.deleted_workloads:
                deleted = self.cluster.deleted_workloads.pop()
                moves += self.kueue.delete(deleted, self.cluster.pods())
            moves += self.kueue.step(self.cluster.pods())
            for move in moves:
                self._server.apply_kueue(move)
            if not moves:
                return
        raise AssertionError(f"Kueue does not settle: {moves}")

    async def _settle(self) -> None:
        with contextlib.suppress(NameTakenError):  # A worker retries it later.
            await super()._settle()

    def _check(self) -> None:
        super()._check()
        assert not broken_rules(self.cluster.pods())
