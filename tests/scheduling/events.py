"""Random events that hit one pod of a gang or the whole gang, while a second gang waits."""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from tests.api.client import path_of
from tests.scheduling.job import ScheduledJob, node_of
from tests.scheduling.pair import SIZE
from tests.scheduling.stage import GPUS_PER_NODE, Stage

JSON = dict[str, Any]
MANY = 10_000
"""Budget that no number of events uses up."""


@dataclass
class GangUnderEvents:
    """A gang that runs, and one that waits, in a cluster with room for one of them.

    The waiting gang would take each place that the running one gives up as a whole, and may take
    none of a single lost pod.
    """

    running: ScheduledJob
    waiting: ScheduledJob
    competes: bool
    """Whether the waiting gang has pods while the running one loses one."""

    @classmethod
    async def start(cls, stage: Stage, gang: JSON, *, competes: bool = True) -> "GangUnderEvents":
        """Create both jobs, and wait until the first one runs."""
        running, waiting = stage.job("running"), stage.job("waiting")
        spec = {"nodes": SIZE, "gpusPerNode": GPUS_PER_NODE, "gang": gang}
        await running.apply(**spec, maxRestarts=MANY, maxInfrastructureRestarts=MANY)
        await running.until_reason("Running")
        await waiting.apply(**spec, suspend=not competes)
        if competes:
            await waiting.until(_all_exist, "all pods exist")
        return cls(running, waiting, competes)

    async def play(self, seed: int, count: int) -> None:
        """Play random events, each after the recovery from the one before."""
        chosen = random.Random(seed)  # noqa: S311
        kinds: list[Callable[[random.Random], Awaitable[None]]] = [
            self._delete_pod,
            self._evict_pod,
            self._requeue,
        ]
        for number in range(count):
            kind = chosen.choice(kinds)
            try:
                await kind(chosen)
            except AssertionError as error:
                name = kind.__name__.strip("_")
                raise AssertionError(f"event {number} ({name}): {error}") from error

    async def finish(self) -> None:
        """Let the running job finish, and then the waiting one."""
        for job in (self.running, self.waiting):
            await job.edit(suspend=False)
            await job.until_reason("Running")
            await job.finish()
            assert job.most_living <= SIZE, f"{job.name} had {job.most_living} living pods"

    async def _delete_pod(self, chosen: random.Random) -> None:
        """Delete one pod, as a node that is removed does."""
        await self._lose_one(chosen, "DELETE", None)

    async def _evict_pod(self, chosen: random.Random) -> None:
        """Evict one pod by the API, as `kubectl drain` does."""
        await self._lose_one(chosen, "POST", "eviction")

    async def _lose_one(self, chosen: random.Random, method: str, part: str | None) -> None:
        """Remove one pod. The others must stay, and the waiting gang must get none of the nodes."""
        before = await self.running.pods()
        lost = chosen.choice(before)
        name, uid = lost["metadata"]["name"], lost["metadata"]["uid"]
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        path = path_of("pods", self.running.namespace, name, part)
        await self.running.api.call(method, path, body if part is not None else None)
        stayed = {pod["metadata"]["uid"] for pod in before} - {uid}

        def replaced(_: JSON, pods: list[JSON]) -> bool:
            uids = {pod["metadata"]["uid"] for pod in pods if node_of(pod)}
            return uid not in uids and len(uids) == SIZE

        await self.running.until(replaced, f"{name} is replaced")
        uids = {pod["metadata"]["uid"] for pod in await self.running.pods()}
        assert stayed <= uids, "the other pods of the gang were replaced, too"
        await self.running.until_reason("Running")
        await self.waiting.step()
        assert await self.waiting.nodes() == [], "the waiting gang got a part of its nodes"

    async def _requeue(self, _: random.Random) -> None:
        """Suspend and resume the running job. The other one runs in between, and is requeued."""
        await self.waiting.edit(suspend=False)
        await self.waiting.until(_all_exist, "all pods exist")
        await self._change_places(self.running, self.waiting)
        await self._change_places(self.waiting, self.running)
        if not self.competes:
            await _suspend(self.waiting)

    async def _change_places(self, running: ScheduledJob, waiting: ScheduledJob) -> None:
        await _suspend(running)
        await waiting.until_reason("Running")
        await running.edit(suspend=False)
        await running.until(_all_exist, "all pods exist again")
        assert await running.nodes() == [], "a gang got a part of its nodes"


async def _suspend(job: ScheduledJob) -> None:
    """Suspend a job, and wait until its pods are gone."""
    await job.edit(suspend=True)
    await job.until_reason("Suspended")
    await job.until(lambda _, pods: not pods, "the pods are gone")
    # The operator acts on the end of the last pod, too: it deletes the group.
    await job.step()


def _all_exist(_: JSON, pods: list[JSON]) -> bool:
    return len(pods) == SIZE
