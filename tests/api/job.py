"""One job in the control plane, as a test follows it: its status, its pods, its agents' words."""

import asyncio
import time
from typing import Any

from ddp_wire.contract import AgentPhase, AgentStatus, Failure, Progress
from tests.api.client import Api, eventually, path_of
from tests.api.kubelet import Agents, Kubelet
from tests.operator.support import job_manifest

JSON = dict[str, Any]


class Job:
    """A job and the kubelets of its namespace, which hold no other job."""

    def __init__(self, api: Api, agents: Agents, namespace: str, name: str = "digits") -> None:
        self.api, self.namespace, self.name = api, namespace, name
        self.kubelet = Kubelet(api, agents, namespace)

    async def create(self, nodes: int = 2, **spec: Any) -> None:
        """`kubectl apply`."""
        manifest = job_manifest(nodes=nodes, **spec)
        manifest["metadata"] = {"name": self.name}
        await self.api.apply_job(self.namespace, manifest)

    async def train(self, **spec: Any) -> None:
        """Create it and let it train."""
        await self.create(**spec)
        await self.pods_of_attempt(1, spec.get("nodes", 2))
        await self.join()
        await self.wait_for("Running")

    async def read(self) -> JSON:
        """The job."""
        return await self.api.call("GET", path_of("ddpjobs", self.namespace, self.name))

    async def status(self) -> JSON:
        """Its status; empty before there is one."""
        found: JSON = (await self.read()).get("status", {})
        return found

    async def condition(self, kind: str = "Succeeded") -> JSON:
        """One of its conditions; empty while there is none."""
        conditions = (await self.status()).get("conditions", [])
        return next((c for c in conditions if c["type"] == kind), {})

    async def reason(self) -> str:
        """What the STATUS column shows."""
        return str((await self.condition()).get("reason", ""))

    async def wait_for(self, reason: str, seconds: float = 30.0) -> float:
        """Wait until STATUS shows a reason. Returns how many seconds that took."""
        begun = time.monotonic()

        async def shows() -> bool:
            return await self.reason() == reason

        try:
            await eventually(shows, f"STATUS {reason}", seconds)
        except TimeoutError as error:
            raise AssertionError(f"{error}: {await self.status()}") from error
        return time.monotonic() - begun

    async def wait_for_message(self, words: str, seconds: float = 30.0) -> JSON:
        """Wait until the summary's sentence holds these words. Returns the condition."""

        async def says() -> bool:
            return words in (await self.condition()).get("message", "")

        try:
            await eventually(says, words, seconds)
        except TimeoutError as error:
            raise AssertionError(f"{error}: {await self.condition()}") from error
        return await self.condition()

    async def pods(self) -> list[JSON]:
        """Its pods, by index."""
        return await self.kubelet.pods()

    async def uids(self) -> dict[str, str]:
        """Uid of each pod by its name."""
        return {p["metadata"]["name"]: p["metadata"]["uid"] for p in await self.pods()}

    async def pods_of_attempt(
        self, attempt: int, nodes: int = 2, seconds: float = 30.0
    ) -> list[JSON]:
        """Wait until so many pods are told to run an attempt. Returns them."""

        async def told() -> bool:
            pods = await self.pods()
            return len(pods) == nodes and all(attempt_of(p) == str(attempt) for p in pods)

        try:
            await eventually(told, f"{nodes} pods of attempt {attempt}", seconds)
        except TimeoutError as error:
            seen = {p["metadata"]["name"]: attempt_of(p) for p in await self.pods()}
            raise AssertionError(f"{error}: {seen}, {await self.status()}") from error
        return await self.pods()

    async def join(self, attempt: int = 1, **word: Any) -> None:
        """All ranks are in the process group, and the kubelets have seen it."""
        pods = await self.pods()
        await asyncio.gather(
            *(
                self.kubelet.say(pod, self.word(index, attempt, **word), ready=True)
                for index, pod in enumerate(pods)
            )
        )

    def word(
        self, index: int, attempt: int, phase: AgentPhase = AgentPhase.TRAINING, **word: Any
    ) -> AgentStatus:
        """What an agent says."""
        return AgentStatus(
            node_index=index, attempt=attempt, phase=phase, since=time.time(), **word
        )

    async def progress(self, step: int, attempt: int = 1) -> None:
        """The agent of node 0 reports a step."""
        pod = (await self.pods())[0]
        word = self.word(0, attempt, progress=Progress(step=step, total_steps=1000, loss=1 / step))
        await self.kubelet.say(pod, word, ready=True)

    async def fail_rank(self, index: int, attempt: int = 1) -> None:
        """A rank of one pod fails: its agent says so, and is not ready any more."""
        pod = (await self.pods())[index]
        failure = Failure(
            attempt=attempt, at=time.time(), rank=index, exit_code=1, message="ValueError: no"
        )
        word = self.word(index, attempt, AgentPhase.FAILED, failure=failure)
        await self.kubelet.say(pod, word, ready=False)

    async def complete(self, attempt: int = 1) -> None:
        """Every rank exits 0."""
        for index, pod in enumerate(await self.pods()):
            await self.kubelet.end(pod, 0, self.word(index, attempt, AgentPhase.SUCCEEDED))


def attempt_of(pod: JSON) -> str:
    """The attempt that a pod is told to run."""
    return str(pod["metadata"]["annotations"]["ddp-trainer.dev/attempt"])
