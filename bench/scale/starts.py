"""Measure how long small jobs wait for pods while large jobs create theirs."""

import asyncio
import time
from dataclasses import dataclass, field

from bench.scale.audit import Request, last_pod_created
from bench.scale.stage import RunningTimes, Stage, job
from tests.api.client import path_of

LARGE_JOBS, LARGE_NODES = 4, 500
SMALL_JOBS, SMALL_NODES = 12, 4
_APART_SECONDS = 1.5
"""Seconds between the creation of two small jobs."""


@dataclass
class Starts:
    """Start times of small and large jobs that are created together, in seconds."""

    first_pod: list[float] = field(default_factory=list)
    """Seconds from the apply of each small job to its first pod, in order of the applies."""
    large_created: float = 0.0
    """Seconds from the apply of the large jobs to the creation of their last pod."""


async def beside_large_jobs(stage: Stage, namespace: str) -> Starts:
    """Create the large jobs at once, and the small jobs one after another."""
    large, audit = f"{namespace}-large", stage.audit()
    for each in (namespace, large):
        await stage.api.create_namespace(each)
    times, applied = RunningTimes(stage.api, large), dict[str, float]()
    async with times.watching():
        began = time.time()
        names = [f"large{number}" for number in range(LARGE_JOBS)]
        await asyncio.gather(*(stage.api.apply_job(large, job(n, LARGE_NODES)) for n in names))
        for number in range(SMALL_JOBS):
            name = f"small{number}"
            applied[name] = time.time()
            await stage.api.apply_job(namespace, job(name, SMALL_NODES))
            await asyncio.sleep(_APART_SECONDS)
        await times.wait_for(LARGE_JOBS)
    created = last_pod_created(await stage.operator_requests(audit, large)) - began
    firsts = _first_pods(await stage.operator_requests(audit, namespace))
    for each in (namespace, large):
        await stage.api.call("DELETE", path_of("ddpjobs", each))
        await stage.wait_until_gone(each)
    # A small job that was applied after the last pod of the large ones was beside nothing.
    beside = [name for name, at in applied.items() if at - began < created]
    return Starts([firsts[name] - applied[name] for name in beside], created)


def _first_pods(requests: list[Request]) -> dict[str, float]:
    """Return the unix seconds of each job's first pod, by the name of the job.

    The name of a pod begins with its job's name, which has no hyphen here.
    """
    found: dict[str, float] = {}
    for one in requests:
        if (one.verb, one.resource) == ("create", "pods"):
            name = one.name.split("-")[0]
            found[name] = min(found.get(name, one.answered), one.answered)
    return found
