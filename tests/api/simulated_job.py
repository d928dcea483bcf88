"""A job on a real API server with simulated pods, a simulated clock and replaceable operators."""

import asyncio
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from ddp_operator.api.status import ConditionType
from ddp_operator.builders.defaults import Defaults
from ddp_wire import contract
from tests.api.client import eventually, path_of
from tests.api.in_process_operator import (
    DEFAULTS,
    InProcessOperator,
    Kill,
    OperatorEnvironment,
)
from tests.api.invariants import FOREIGN_UID
from tests.api.kubelet import FakeKubelet
from tests.operator.support import NOW, job_manifest
from tests.scenarios.flows import NAME
from tests.scenarios.pods import TERMINAL, Script, ScriptedPods

JSON = dict[str, Any]
_MAX_SECONDS = 20
"""Maximum simulated seconds until a job must reach the wanted reason."""


class SimulatedJob:
    """One job in a namespace, its simulated pods and their clock."""

    def __init__(
        self,
        environment: OperatorEnvironment,
        namespace: str,
        script: Script | None = None,
        *,
        name: str = NAME,
        defaults: Defaults = DEFAULTS,
    ) -> None:
        self._defaults = defaults
        self.environment, self.namespace, self.name = environment, namespace, name
        self.kubelet = FakeKubelet(environment.api, environment.agents, namespace)
        self.now: datetime = NOW
        self._scripted = ScriptedPods(script or Script())
        self._path = path_of("ddpjobs", namespace, name)

    def new_operator(self, kill: Kill | None = None) -> InProcessOperator:
        """Return a new simulated operator process."""
        return InProcessOperator(
            self.environment.cluster,
            self.namespace,
            lambda: self.now,
            self.environment.agents,
            kill=kill,
            name=self.name,
            defaults=self._defaults,
        )

    async def apply(self, manifest: JSON | None = None, **spec: Any) -> JSON:
        """Create the job, as a user does."""
        job = manifest or job_manifest(**({"nodes": 2} | spec))
        # The test manifest has metadata that only the API server may set.
        return await self.environment.api.apply_job(
            self.namespace, {**job, "metadata": {"name": self.name}}
        )

    async def edit(self, **spec: Any) -> JSON:
        """Change fields of the spec, as a user does."""
        return await self.environment.api.edit_job(self.namespace, self.name, spec)

    async def job(self) -> JSON | None:
        """Return the job, or None if it is deleted."""
        return await self.environment.api.find(self._path)

    async def status(self) -> JSON:
        """Return the job's status."""
        job = await self.job()
        assert job is not None
        found: JSON = job.get("status", {})
        return found

    async def summary(self) -> tuple[str, str]:
        """Return the contents of the columns STATUS and MESSAGE."""
        conditions = {c["type"]: c for c in (await self.status()).get("conditions", [])}
        found = conditions.get(ConditionType.SUCCEEDED, {"reason": "", "message": ""})
        return found["reason"], found["message"]

    async def pods(self) -> list[JSON]:
        """Return the job's pods, by name."""
        return self.own_pods(await self.kubelet.pods())

    def own_pods(self, pods: Iterable[JSON]) -> list[JSON]:
        """Return the pods among these that belong to the job."""
        return [pod for pod in pods if self._owns(pod)]

    async def advance(self) -> None:
        """Let one simulated second pass for the job's pods."""
        await self.advance_pods(await self.job(), await self.pods())

    async def advance_pods(self, job: JSON | None, pods: Sequence[JSON]) -> None:
        """Let one simulated second pass for these pods of the job."""
        nodes = job["spec"]["nodes"] if job is not None else 0
        await self.kubelet.run_scripted(self._scripted, pods, nodes, self.now)
        self.tick()

    def tick(self) -> None:
        """Move the clock by one second."""
        self.now += timedelta(seconds=1)

    async def has_active_pods(self) -> bool:
        """Return whether any of the job's pods is active."""
        return any_pod_active(await self.pods())

    async def wait_until_deleted(self) -> None:
        """Wait until the garbage collector has deleted the children of the deleted job."""

        async def is_deleted() -> bool:
            await self.kubelet.finish_deletions()
            kinds = ("ddpjobs", "pods", "services", "networkpolicies")
            remaining = [await self.environment.api.list(kind, self.namespace) for kind in kinds]
            return not any(remaining)

        await eventually(is_deleted, f"{self.namespace}/{self.name} and its children are deleted")

    async def delete(self) -> None:
        """Delete the job and its pods in any state."""
        pods = await self.pods()
        job = await self.job()
        if job is not None:
            await self.environment.api.call("DELETE", self._path)
        await asyncio.gather(*(self.kubelet.remove(pod) for pod in pods))

    def _owns(self, pod: JSON) -> bool:
        labels = pod["metadata"]["labels"]
        foreign = labels.get(contract.LABEL_JOB_UID) == FOREIGN_UID
        return labels.get(contract.LABEL_JOB_NAME) == self.name and not foreign

    async def run_until(
        self, reason: str, operator: InProcessOperator | None = None
    ) -> InProcessOperator:
        """Run until the job shows a reason, with this operator or a new one. Return it."""
        operator = operator or self.new_operator()
        for _ in range(_MAX_SECONDS):
            await operator.reconcile_until_idle()
            if (await self.summary())[0] == reason:
                return operator
            await self.advance()
        raise AssertionError(f"{await self.summary()} after {_MAX_SECONDS} s, expected {reason}")


def any_pod_active(pods: Iterable[JSON]) -> bool:
    """Return whether any of these pods is active."""
    return any(pod["status"]["phase"] not in TERMINAL for pod in pods)
