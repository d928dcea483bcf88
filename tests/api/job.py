"""A job on the control plane with its status, its pods and its fake agents."""

import asyncio
import time
from typing import Any

from ddp_wire.messages import AgentPhase, AgentStatus, CheckpointInfo, Failure, Progress
from tests.api.client import Api, eventually, path_of
from tests.api.kubelet import FakeAgents, FakeKubelet
from tests.operator.support import job_manifest

JSON = dict[str, Any]


class Job:
    """A job and the fake kubelets of its namespace, which holds no other job."""

    def __init__(self, api: Api, agents: FakeAgents, namespace: str, name: str = "digits") -> None:
        self.api, self.namespace, self.name = api, namespace, name
        self.kubelet = FakeKubelet(api, agents, namespace)

    async def create(self, nodes: int = 2, **spec: Any) -> None:
        """Create the job, as `kubectl apply` does."""
        manifest = job_manifest(nodes=nodes, **spec)
        manifest["metadata"] = {"name": self.name}
        await self.api.apply_job(self.namespace, manifest)

    async def train(self, **spec: Any) -> None:
        """Create the job and wait until it is Running."""
        await self.create(**spec)
        await self.pods_of_attempt(1, spec.get("nodes", 2))
        await self.start_training()
        await self.wait_for("Running")

    async def read(self) -> JSON:
        """Return the job."""
        return await self.api.call("GET", path_of("ddpjobs", self.namespace, self.name))

    async def status(self) -> JSON:
        """Return the job's status; empty before the first one."""
        found: JSON = (await self.read()).get("status", {})
        return found

    async def condition(self, kind: str = "Succeeded") -> JSON:
        """Return one of the job's conditions; empty if it is absent."""
        conditions = (await self.status()).get("conditions", [])
        return next((c for c in conditions if c["type"] == kind), {})

    async def reason(self) -> str:
        """Return the content of the STATUS column."""
        return str((await self.condition()).get("reason", ""))

    async def shows_step(self, step: int) -> bool:
        """Return whether the status shows this step as the progress."""
        return bool((await self.status()).get("progress", {}).get("step") == step)

    async def wait_for(self, reason: str, seconds: float = 30.0) -> float:
        """Wait until STATUS shows a reason. Return the seconds that this took."""
        started = time.monotonic()

        async def has_reason() -> bool:
            return await self.reason() == reason

        try:
            await eventually(has_reason, f"STATUS {reason}", seconds)
        except TimeoutError as error:
            raise AssertionError(f"{error}: {await self.status()}") from error
        return time.monotonic() - started

    async def wait_for_message(self, text: str, seconds: float = 30.0) -> JSON:
        """Wait until the summary's message contains a text. Return the condition."""

        async def message_contains() -> bool:
            return text in (await self.condition()).get("message", "")

        try:
            await eventually(message_contains, text, seconds)
        except TimeoutError as error:
            raise AssertionError(f"{error}: {await self.condition()}") from error
        return await self.condition()

    async def pods(self) -> list[JSON]:
        """Return the job's pods, by index."""
        return await self.kubelet.pods()

    async def uids(self) -> dict[str, str]:
        """Return the uid of each pod by its name."""
        return {p["metadata"]["name"]: p["metadata"]["uid"] for p in await self.pods()}

    async def pods_of_attempt(
        self, attempt: int, nodes: int = 2, seconds: float = 30.0
    ) -> list[JSON]:
        """Wait until all pods carry an attempt, and return them."""

        async def all_ordered() -> bool:
            pods = await self.pods()
            return len(pods) == nodes and all(attempt_of(p) == str(attempt) for p in pods)

        try:
            await eventually(all_ordered, f"{nodes} pods of attempt {attempt}", seconds)
        except TimeoutError as error:
            seen = {p["metadata"]["name"]: attempt_of(p) for p in await self.pods()}
            raise AssertionError(f"{error}: {seen}, {await self.status()}") from error
        return await self.pods()

    async def start_training(self, attempt: int = 1, **fields: Any) -> None:
        """Report that all ranks train in an attempt, with all pods ready."""
        pods = await self.pods()
        await asyncio.gather(
            *(
                self.kubelet.report_status(
                    pod, self.agent_status(index, attempt, **fields), ready=True
                )
                for index, pod in enumerate(pods)
            )
        )

    def agent_status(
        self, index: int, attempt: int, phase: AgentPhase = AgentPhase.TRAINING, **fields: Any
    ) -> AgentStatus:
        """Return the status of one agent."""
        return AgentStatus(
            node_index=index, attempt=attempt, phase=phase, since=time.time(), **fields
        )

    async def report_progress(self, step: int, attempt: int = 1, *, saved: bool = False) -> None:
        """Report a step from the agent of node 0, with a checkpoint of it or without."""
        pod = (await self.pods())[0]
        progress = Progress(step=step, total_steps=1000, loss=1 / step)
        checkpoint = CheckpointInfo(step=step, path=f"step-{step}", at=time.time())
        status = self.agent_status(
            0, attempt, progress=progress, checkpoint=checkpoint if saved else None
        )
        await self.kubelet.report_status(pod, status, ready=True)

    async def save(self, step: int, attempt: int = 1) -> None:
        """Report a checkpoint and wait until the status has it, so that the attempt counts."""
        await self.report_progress(step, attempt, saved=True)

        async def is_known() -> bool:
            return bool((await self.status()).get("lastCheckpoint", {}).get("step") == step)

        await eventually(is_known, f"the checkpoint of step {step} is in the status")

    async def fail_rank(self, index: int, attempt: int = 1) -> None:
        """Report a failed rank from the agent of one pod, which becomes unready."""
        pod = (await self.pods())[index]
        failure = Failure(
            attempt=attempt, at=time.time(), rank=index, exit_code=1, message="ValueError: no"
        )
        status = self.agent_status(index, attempt, AgentPhase.FAILED, failure=failure)
        await self.kubelet.report_status(pod, status, ready=False)

    async def complete(self, attempt: int = 1) -> None:
        """Let every rank exit 0."""
        for index, pod in enumerate(await self.pods()):
            await self.kubelet.end_container(
                pod, 0, self.agent_status(index, attempt, AgentPhase.SUCCEEDED)
            )


def attempt_of(pod: JSON) -> str:
    """Return the attempt in a pod's annotation."""
    return str(pod["metadata"]["annotations"]["ddp-trainer.dev/attempt"])
