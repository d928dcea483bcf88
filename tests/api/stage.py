"""One job in a namespace of its own, with its pods, their clock, and operators that come and go."""

import asyncio
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from ddp_operator.api.status import ConditionType
from ddp_wire import contract
from tests.api.bench import Bench, Kill, Operator
from tests.api.client import eventually, path_of
from tests.api.invariants import FOREIGN_UID
from tests.api.kubelet import Kubelet
from tests.operator.support import NOW, job_manifest
from tests.scenarios.flows import NAME
from tests.scenarios.pods import TERMINAL, PlayedPods, Script

JSON = dict[str, Any]
_SECONDS = 20
"""Of the played clock, within which a job gets where a test wants it."""


class Stage:
    """See the module."""

    def __init__(
        self, bench: Bench, namespace: str, script: Script | None = None, *, name: str = NAME
    ) -> None:
        self.bench, self.namespace, self.name = bench, namespace, name
        self.kubelet = Kubelet(bench.api, bench.agents, namespace)
        self.now: datetime = NOW
        self._played = PlayedPods(script or Script())
        self._path = path_of("ddpjobs", namespace, name)

    def operator(self, kill: Kill | None = None) -> Operator:
        """A new process of the operator."""
        return Operator(
            self.bench.cluster, self.namespace, lambda: self.now, kill=kill, name=self.name
        )

    async def apply(self, manifest: JSON | None = None, **spec: Any) -> JSON:
        """A user creates the job."""
        job = manifest or job_manifest(**({"nodes": 2} | spec))
        # Without what only the API server says.
        return await self.bench.api.apply_job(
            self.namespace, {**job, "metadata": {"name": self.name}}
        )

    async def edit(self, **spec: Any) -> JSON:
        """A user changes fields of the spec."""
        return await self.bench.api.edit_job(self.namespace, self.name, spec)

    async def job(self) -> JSON | None:
        """The job, while there is one."""
        return await self.bench.api.find(self._path)

    async def status(self) -> JSON:
        """Its status."""
        job = await self.job()
        assert job is not None
        found: JSON = job.get("status", {})
        return found

    async def summary(self) -> tuple[str, str]:
        """What the columns STATUS and MESSAGE show."""
        conditions = {c["type"]: c for c in (await self.status()).get("conditions", [])}
        found = conditions.get(ConditionType.SUCCEEDED, {"reason": "", "message": ""})
        return found["reason"], found["message"]

    async def pods(self) -> list[JSON]:
        """The job's pods, by name."""
        return self.own(await self.kubelet.pods())

    def own(self, pods: Iterable[JSON]) -> list[JSON]:
        """Those of some pods that are the job's."""
        return [pod for pod in pods if self._is_its_own(pod)]

    async def second(self) -> None:
        """A second passes for the pods."""
        await self.second_of(await self.job(), await self.pods())

    async def second_of(self, job: JSON | None, pods: Sequence[JSON]) -> None:
        """A second passes for these pods of the job."""
        nodes = job["spec"]["nodes"] if job is not None else 0
        await self.kubelet.play(self._played, pods, nodes, self.now)
        self.now += timedelta(seconds=1)

    async def lives(self) -> bool:
        """Whether any of the job's pods lives."""
        return any_lives(await self.pods())

    async def vanishes(self) -> None:
        """Wait until the garbage collector has taken the children of the deleted job."""

        async def has_gone() -> bool:
            await self.kubelet.finish_deletions()
            kinds = ("ddpjobs", "pods", "services")
            left = [await self.bench.api.list(kind, self.namespace) for kind in kinds]
            return not any(left)

        await eventually(has_gone, f"{self.namespace}/{self.name} and its children go")

    async def clear(self) -> None:
        """Delete the job and its pods, whatever their state."""
        pods = await self.pods()
        job = await self.job()
        if job is not None:
            await self.bench.api.call("DELETE", self._path)
        await asyncio.gather(*(self.kubelet.remove(pod) for pod in pods))

    def _is_its_own(self, pod: JSON) -> bool:
        labels = pod["metadata"]["labels"]
        foreign = labels.get(contract.LABEL_JOB_UID) == FOREIGN_UID
        return labels.get(contract.LABEL_JOB_NAME) == self.name and not foreign

    async def until(self, reason: str, operator: Operator | None = None) -> Operator:
        """Let the job come to a reason under an operator, or a new one. Returns that operator."""
        operator = operator or self.operator()
        for _ in range(_SECONDS):
            await operator.settle()
            if (await self.summary())[0] == reason:
                return operator
            await self.second()
        raise AssertionError(f"{await self.summary()} after {_SECONDS} s, not {reason}")


def any_lives(pods: Iterable[JSON]) -> bool:
    """Whether any of some pods lives."""
    return any(pod["status"]["phase"] not in TERMINAL for pod in pods)
