"""One flow on a real API server, with an operator that is killed at one of its writes."""

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from ddp_wire import contract
from tests.api.bench import Bench, Kill
from tests.api.client import eventually, path_of
from tests.api.history import History
from tests.api.invariants import FOREIGN_UID, violations
from tests.api.stage import Stage, any_lives
from tests.operator.fake_cluster import Killed
from tests.scenarios.flows import NAME, Flow, end_of, timeless

JSON = dict[str, Any]
SECONDS = 60
"""Of the played clock, within which each flow ends."""


@dataclass
class Outcome:
    """What became of a run."""

    writes: int
    """Served by the API server, of all processes."""
    sent: int
    """By the last process: to the API server and to agents."""
    deaths: int
    end: tuple[str, int, int, int] | None = None
    """Reason, attempt and restarts by cause."""
    rest: JSON = field(default_factory=dict)
    """The last status without times, and what is left in the namespace."""
    problems: list[str] = field(default_factory=list)


class Run:
    """One job from its creation to its end, in a namespace of its own."""

    def __init__(self, bench: Bench, flow: Flow, namespace: str, kill: Kill | None) -> None:
        self._bench, self._flow, self._namespace = bench, flow, namespace
        self._stage = Stage(bench, namespace, flow.script)
        self._operator = self._stage.operator(kill)
        self._deaths = 0

    async def outcome(self) -> Outcome:
        """Play the flow to its end, then judge all that happened in the namespace."""
        await self._bench.api.make_namespace(self._namespace)
        await asyncio.gather(*(self._stranger(*who) for who in _STRANGERS.items()))
        job = await self._stage.apply(self._flow.job())
        problems: list[str] = []
        try:
            await self._to_the_end()
        except (AssertionError, TimeoutError) as error:
            problems.append(str(error))
        history = await self._bench.history(self._namespace)
        problems += violations(history)
        statuses = history.statuses()
        found = Outcome(
            len(history.requests), self._operator.writes, self._deaths, problems=problems
        )
        if statuses:
            found.end = end_of(statuses[-1]["status"])
            found.rest = _rest(history, job["metadata"]["uid"])
        if found.end != self._flow.end:
            problems.append(f"it ended as {found.end}, not as {self._flow.end}")
        return found

    async def _stranger(self, name: str, labels: JSON) -> None:
        """A pod that looks like one of the job's and is not."""
        container = {"name": "c", "image": "x", "securityContext": _RESTRICTED}
        body = {
            "metadata": {"name": name, "labels": labels},
            "spec": {"containers": [container], "securityContext": _POD_RESTRICTED},
        }
        await self._bench.api.call("POST", path_of("pods", self._namespace), body)

    async def _to_the_end(self) -> None:
        for second in range(SECONDS):
            await self._settle()
            # Its last look wrote nothing: it saw what is.
            job, seen = self._operator.seen()
            pods = self._stage.own(seen)
            if self._flow.over(job, lives=any_lives(pods)):
                await self._to_rest()
                return
            edit = self._flow.script.edits.get(second)
            if job is not None and edit is not None:
                job = await self._stage.edit(**edit)
            await self._stage.second_of(job, pods)
        raise AssertionError(f"not at its end after {SECONDS} s: {await self._stage.summary()}")

    async def _settle(self) -> None:
        while True:
            try:
                await self._operator.settle()
            except Killed:
                self._deaths += 1
                self._operator = self._stage.operator()
            else:
                return

    async def _to_rest(self) -> None:
        """Children of a deleted job go; then nothing is left to write."""
        if self._flow.ttl:
            await eventually(self._is_cleared, f"{self._namespace} is cleared", every=0.3)
        before = self._operator.writes
        self._stage.now += timedelta(seconds=3600)
        await self._operator.look()
        written = self._operator.writes - before
        assert not written, f"{written} writes an hour after the end"

    async def _is_cleared(self) -> bool:
        await self._stage.kubelet.finish_deletions()
        left = [
            item["metadata"]["name"]
            for resource in ("pods", "services")
            for item in await self._bench.api.list(resource, self._namespace)
        ]
        return set(left) == set(_STRANGERS)


def _rest(history: History, uid: str) -> JSON:
    status = timeless(history.statuses()[-1]["status"])
    status["selector"] = status.get("selector", "").replace(uid, "<uid>")
    return {
        "status": status,
        "job": NAME in history.left("ddpjobs"),
        "pods": sorted(history.left("pods")),
        "services": sorted(history.left("services")),
    }


_RESTRICTED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
_POD_RESTRICTED = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
_STRANGERS: dict[str, JSON] = {
    f"{NAME}-8": {"app": NAME},
    f"{NAME}-9": {
        contract.LABEL_MANAGED_BY: contract.MANAGED_BY,
        contract.LABEL_JOB_NAME: NAME,
        contract.LABEL_JOB_UID: FOREIGN_UID,
        contract.LABEL_NODE_INDEX: "1",
    },
}
"""Names and labels of pods that are none of the job's."""
