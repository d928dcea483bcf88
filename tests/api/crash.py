"""Run one flow on a real API server with an operator that is killed at one of its writes."""

import asyncio
import json
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from ddp_wire import contract
from tests.api.client import eventually, path_of
from tests.api.history import History
from tests.api.in_process_operator import Kill, OperatorEnvironment
from tests.api.invariants import FOREIGN_UID, violations
from tests.api.simulated_job import SimulatedJob, any_pod_active
from tests.operator.fake_cluster import Killed
from tests.scenarios.flows import NAME, Flow, end_of, without_times

JSON = dict[str, Any]
MAX_SECONDS = 60
"""Maximum simulated seconds until a flow must be over."""


@dataclass
class Outcome:
    """The result of one run of a flow."""

    writes: int
    """Writes that the API server served, of all operator processes."""
    sent_writes: int
    """Writes that the last operator process sent, to the API server and to agents."""
    kills: int
    """Number of times that the operator was killed."""
    end: tuple[str, int, int, int] | None = None
    """Reason, attempt and restarts by cause."""
    final_state: JSON = field(default_factory=dict)
    """The last status without times, and the objects that remain in the namespace."""
    problems: list[str] = field(default_factory=list)


class FlowRun:
    """One job from its creation to its end, in its own namespace."""

    def __init__(
        self, environment: OperatorEnvironment, flow: Flow, namespace: str, kill: Kill | None
    ) -> None:
        self._environment, self._flow, self._namespace = environment, flow, namespace
        self._simulated = SimulatedJob(environment, namespace, flow.script)
        self._operator = self._simulated.new_operator(kill)
        self._kills = 0

    async def outcome(self) -> Outcome:
        """Play the flow to its end, then check the history of the namespace."""
        await self._environment.api.create_namespace(self._namespace)
        await asyncio.gather(*(self._create_foreign_pod(*pod) for pod in _FOREIGN_PODS.items()))
        job = await self._simulated.apply(self._flow.job())
        problems: list[str] = []
        try:
            await self._run_to_end()
        except (AssertionError, TimeoutError) as error:
            problems.append(str(error))
        history = await self._environment.history(self._namespace)
        problems += violations(history)
        statuses = history.statuses()
        found = Outcome(
            len(history.requests), self._operator.writes, self._kills, problems=problems
        )
        if statuses:
            found.end = end_of(statuses[-1]["status"])
            found.final_state = _final_state(history, job["metadata"]["uid"])
        if found.end != self._flow.end:
            problems.append(f"the run ended as {found.end}, expected {self._flow.end}")
        return found

    async def _create_foreign_pod(self, name: str, labels: JSON) -> None:
        """Create a pod that resembles the job's pods and belongs to another owner."""
        container = {"name": "c", "image": "x", "securityContext": _RESTRICTED}
        body = {
            "metadata": {"name": name, "labels": labels},
            "spec": {"containers": [container], "securityContext": _POD_RESTRICTED},
        }
        await self._environment.api.call("POST", path_of("pods", self._namespace), body)

    async def _run_to_end(self) -> None:
        for second in range(MAX_SECONDS):
            await self._reconcile()
            # The last reconcile wrote nothing, so its snapshot is current.
            job, seen = self._operator.last_snapshot()
            pods = self._simulated.own_pods(seen)
            if self._flow.is_over(job, has_live_pods=any_pod_active(pods)):
                await self._check_final_state()
                return
            edit = self._flow.script.edits.get(second)
            if job is not None and edit is not None:
                job = await self._simulated.edit(**edit)
            await self._simulated.advance_pods(job, pods)
        raise AssertionError(
            f"the run is not over after {MAX_SECONDS} s: {await self._simulated.summary()}"
        )

    async def _reconcile(self) -> None:
        while True:
            try:
                await self._operator.reconcile_until_idle()
            except Killed:
                self._kills += 1
                self._operator = self._simulated.new_operator()
            else:
                return

    async def _check_final_state(self) -> None:
        """Check that the children of a deleted job are deleted and that no write follows."""
        if self._flow.ttl:
            await eventually(
                self._children_are_deleted,
                f"all children in {self._namespace} are deleted",
                every=0.3,
            )
        before = self._operator.writes
        self._simulated.now += timedelta(seconds=3600)
        await self._operator.reconcile_once()
        written = self._operator.writes - before
        assert not written, f"the operator sent {written} writes an hour after the end"

    async def _children_are_deleted(self) -> bool:
        await self._simulated.kubelet.finish_deletions()
        left = [
            item["metadata"]["name"]
            for resource in ("pods", "services", "networkpolicies")
            for item in await self._environment.api.list(resource, self._namespace)
        ]
        return set(left) == set(_FOREIGN_PODS)


def _final_state(history: History, uid: str) -> JSON:
    status = json.dumps(without_times(history.statuses()[-1]["status"]))
    return {
        "status": json.loads(status.replace(uid, "<uid>")),
        "job": NAME in history.remaining("ddpjobs"),
        "pods": sorted(history.remaining("pods")),
        "services": sorted(history.remaining("services")),
        "networkpolicies": sorted(history.remaining("networkpolicies")),
    }


_RESTRICTED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
_POD_RESTRICTED = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
_FOREIGN_PODS: dict[str, JSON] = {
    f"{NAME}-8": {"app": NAME},
    f"{NAME}-9": {
        contract.LABEL_MANAGED_BY: contract.MANAGED_BY,
        contract.LABEL_JOB_NAME: NAME,
        contract.LABEL_JOB_UID: FOREIGN_UID,
        contract.LABEL_NODE_INDEX: "1",
    },
}
"""Labels by name of pods that do not belong to the job."""
