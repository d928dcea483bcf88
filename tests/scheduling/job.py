"""A job whose pods a real scheduler places on fake nodes, under an operator in this process."""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from ddp_operator.builders.defaults import Defaults
from ddp_operator.cluster.base import ClusterError
from ddp_wire import contract
from ddp_wire.messages import AgentPhase, AgentStatus, CheckpointInfo, Progress
from ddp_wire.orders import order_from_text
from tests.api.client import path_of
from tests.api.in_process_operator import InProcessOperator, OperatorEnvironment
from tests.api.kubelet import FakeKubelet
from tests.operator.support import job_manifest
from tests.scenarios.pods import TERMINAL

JSON = dict[str, Any]
SECONDS = 30.0
"""Maximum seconds until a job reaches an expected state."""
_PAUSE_SECONDS = 0.05


class ScheduledJob:
    """A job in a namespace. Its agents train together once all pods of the attempt run."""

    def __init__(
        self, environment: OperatorEnvironment, namespace: str, name: str, defaults: Defaults
    ) -> None:
        self.api, self._agents = environment.api, environment.agents
        self.namespace, self.name = namespace, name
        self._kubelet = FakeKubelet(self.api, self._agents, namespace)
        self._path = path_of("ddpjobs", namespace, name)
        self._steps, self._refusal = 0, ""
        self.most_living = 0
        """Highest number of living pods at the same time."""
        self._operator = InProcessOperator(
            environment.cluster,
            namespace,
            lambda: datetime.now(UTC),
            self._agents,
            name=name,
            defaults=defaults,
        )

    async def apply(self, **spec: Any) -> None:
        """Create the job, as a user does. The API server must also accept it as a dry run."""
        manifest = {**job_manifest(**spec), "metadata": {"name": self.name}}
        await self.api.call(
            "POST",
            path_of("ddpjobs", self.namespace),
            {**manifest, "metadata": {"name": self.name, "namespace": self.namespace}},
            {"fieldValidation": "Strict", "dryRun": "All"},
        )
        await self.api.apply_job(self.namespace, manifest)

    async def edit(self, **spec: Any) -> None:
        """Change fields of the spec, as a user does."""
        await self.api.edit_job(self.namespace, self.name, spec)

    async def status(self) -> JSON:
        """Return the job's status."""
        found: JSON = (await self.api.call("GET", self._path)).get("status", {})
        return found

    async def condition(self, kind: str = "Succeeded") -> JSON:
        """Return one of the job's conditions; empty if it is absent."""
        conditions = (await self.status()).get("conditions", [])
        return next((one for one in conditions if one["type"] == kind), {})

    async def pods(self) -> list[JSON]:
        """Return the pods of the job, by name."""
        label = {"labelSelector": f"{contract.LABEL_JOB_NAME}={self.name}"}
        found = await self.api.call("GET", path_of("pods", self.namespace), query=label)
        return sorted(found["items"], key=lambda pod: str(pod["metadata"]["name"]))

    async def nodes(self) -> list[str]:
        """Return the Kubernetes nodes of the living pods that have one, by the pod's name."""
        return [n for pod in await self.pods() if is_living(pod) and (n := node_of(pod))]

    async def step(self) -> list[JSON]:
        """Let the agents and then the operator act once. Return the pods before that."""
        pods = await self.pods()
        self.most_living = max(self.most_living, sum(map(is_living, pods)))
        self._update_agents(pods)
        self._refusal = ""
        try:
            await self._operator.reconcile_once()
        except ClusterError as refused:  # The operator's queue tries again, as the next step does.
            self._refusal = str(refused)
        return pods

    async def until(
        self, holds: Callable[[JSON, list[JSON]], bool], what: str, seconds: float = SECONDS
    ) -> None:
        """Let agents and operator act until a condition on the job's status and its pods holds.

        Raises:
            AssertionError: It did not hold in time.
        """
        deadline = time.monotonic() + seconds
        while True:
            await self.step()
            status, pods = await self.status(), await self.pods()
            if holds(status, pods):
                return
            if time.monotonic() > deadline:
                placed = {pod["metadata"]["name"]: node_of(pod) for pod in pods}
                raise AssertionError(
                    f"{self.name}: not within {seconds:.0f} s: {what};"
                    f" {placed}, {status.get('conditions')} {self._refusal}"
                )
            await asyncio.sleep(_PAUSE_SECONDS)

    async def until_reason(self, reason: str, seconds: float = SECONDS) -> None:
        """Wait until STATUS shows a reason."""
        await self.until(lambda status, _: reason_of(status) == reason, f"STATUS {reason}", seconds)

    async def until_placed(self, count: int, seconds: float = SECONDS) -> list[str]:
        """Wait until so many living pods have a Kubernetes node. Return the nodes."""

        def placed(_: JSON, pods: list[JSON]) -> bool:
            return sum(is_living(pod) and bool(node_of(pod)) for pod in pods) == count

        await self.until(placed, f"{count} pods have a Kubernetes node", seconds)
        return await self.nodes()

    async def until_message(self, *texts: str) -> str:
        """Wait until MESSAGE contains all texts. Return the message."""
        await self.until(
            lambda status, _: all(text in message_of(status) for text in texts), f"MESSAGE {texts}"
        )
        return message_of(await self.status())

    async def finish(self) -> None:
        """Let every rank exit 0, and wait until the job is Completed."""
        for pod in await self.pods():
            status = self._agents.status(pod["status"].get("podIP"))
            assert status is not None, f"{pod['metadata']['name']} does not run"
            final = status.model_copy(update={"phase": AgentPhase.SUCCEEDED})
            await self._kubelet.end_container(pod, 0, final)
        await self.until_reason("Completed")

    def _update_agents(self, pods: list[JSON]) -> None:
        """Let the agents of running pods report that they wait or train."""
        running = [pod for pod in pods if is_running(pod)]
        orders = {order_of(pod) for pod in running}
        trains = len(orders) == 1 and len(running) == len(pods)
        self._steps += trains
        for pod in running:
            index = int(pod["metadata"]["labels"][contract.LABEL_NODE_INDEX])
            attempt = order_of(pod)
            # A saved step in each attempt: the operator counts none of them as a failed start.
            step = 100 * attempt + self._steps
            saved = CheckpointInfo(step=step, path=f"step-{step}", at=time.time())
            status = AgentStatus(
                node_index=index,
                attempt=attempt,
                phase=AgentPhase.TRAINING if trains else AgentPhase.WAITING,
                since=time.time(),
                progress=Progress(step=step, total_steps=1_000_000) if trains else None,
                checkpoint=saved if trains and index == 0 else None,
            )
            self._agents.set_agent(pod["status"]["podIP"], status)


def is_living(pod: JSON) -> bool:
    """Return whether a pod has neither ended nor been deleted."""
    return pod["status"]["phase"] not in TERMINAL and "deletionTimestamp" not in pod["metadata"]


def is_running(pod: JSON) -> bool:
    """Return whether a living pod runs, so that its agent answers."""
    return is_living(pod) and pod["status"]["phase"] == "Running" and "podIP" in pod["status"]


def node_of(pod: JSON) -> str:
    """Return the Kubernetes node of a pod, or an empty text."""
    return str(pod["spec"].get("nodeName", ""))


def order_of(pod: JSON) -> int:
    """Return the attempt that a pod is ordered to train in; 0 if it is ordered to stop."""
    order = order_from_text(pod["metadata"]["annotations"][contract.ANNOTATION_ATTEMPT])
    return order.attempt if order is not None else 0


def reason_of(status: JSON) -> str:
    """Return the content of the column STATUS."""
    return str(_summary(status).get("reason", ""))


def message_of(status: JSON) -> str:
    """Return the content of the column MESSAGE."""
    return str(_summary(status).get("message", ""))


def _summary(status: JSON) -> JSON:
    conditions = status.get("conditions", [])
    return next((one for one in conditions if one["type"] == "Succeeded"), {})
