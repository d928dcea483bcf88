"""Measure how much the jobs of one namespace slow a new job in another namespace."""

import asyncio
import json
import time
from dataclasses import dataclass, field

from bench.scale.audit import last_pod_created
from bench.scale.conduct import Conduct
from bench.scale.meter import peak_megabytes, reset_peak
from bench.scale.stage import RunningTimes, Stage, job
from tests.api.client import eventually

_NODES = 4
_SETTLE_SECONDS = 15.0
"""Seconds after which the operator polls a silent agent at its longest interval."""
_SAMPLES = 8
"""Number of new jobs per round, created one after another."""
_START_SECONDS = 120.0


@dataclass
class Neighbours:
    """Start times of new jobs, alone and beside many jobs in another namespace, in seconds."""

    crowd_jobs: int
    created: dict[Conduct | None, list[float]] = field(default_factory=dict)
    """Seconds from apply until the last pod was created."""
    running: dict[Conduct | None, list[float]] = field(default_factory=dict)
    """Seconds from apply until the job was Running."""
    largest_status: int = 0
    """Size of the largest status of a job with hostile agents, in bytes."""
    peak_megabytes: float = 0.0
    """The operator's peak memory while agents are hostile, in 10^6 bytes."""


async def beside_crowds(stage: Stage, jobs: int, rounds: int) -> Neighbours:
    """Measure new jobs alone, beside many silent agents and beside many hostile agents."""
    found = Neighbours(jobs)
    for number in range(rounds):
        for conduct in (None, Conduct.SILENT, Conduct.HOSTILE):
            crowd = None if conduct is None else f"{conduct}-{number}"
            if crowd is not None:
                await _start_crowd(stage, crowd, jobs)
            reset_peak(stage.pid)
            namespace = f"neighbour-{number}-{conduct or 'alone'}"
            created, running = await _new_jobs(stage, namespace)
            found.created.setdefault(conduct, []).extend(created)
            found.running.setdefault(conduct, []).extend(running)
            if crowd is not None:
                if conduct is Conduct.HOSTILE:
                    found.peak_megabytes = max(found.peak_megabytes, peak_megabytes(stage.pid))
                    found.largest_status = max(found.largest_status, await _status(stage, crowd))
                await stage.delete_jobs(crowd)
                await stage.wait_until_gone(crowd)
    return found


async def _start_crowd(stage: Stage, namespace: str, jobs: int) -> None:
    """Create the jobs. Wait until all pods run and the operator has polled their agents."""
    await stage.api.create_namespace(namespace)
    manifests = [job(f"crowd{number}", _NODES) for number in range(jobs)]
    for manifest in manifests:
        manifest["spec"] |= {"maxRestarts": 1000}
    await asyncio.gather(*(stage.api.apply_job(namespace, one) for one in manifests))

    async def all_run() -> bool:
        pods = await stage.api.list("pods", namespace)
        running = [pod for pod in pods if pod["status"]["phase"] == "Running"]
        return len(running) >= jobs * _NODES

    await eventually(all_run, f"the pods of {namespace} run", _START_SECONDS, every=1.0)
    await asyncio.sleep(_SETTLE_SECONDS)


async def _new_jobs(stage: Stage, namespace: str) -> tuple[list[float], list[float]]:
    """Return the seconds until the pods of new jobs were created, and until the jobs ran."""
    await stage.api.create_namespace(namespace)
    created, running = [], []
    times = RunningTimes(stage.api, namespace)
    async with times.watching():
        for number in range(_SAMPLES):
            audit, name = stage.audit(), f"new{number}"
            applied = time.time()
            await stage.api.apply_job(namespace, job(name, _NODES))
            await times.wait_for(number + 1)
            running.append(times.times[name] - applied)
            created.append(
                last_pod_created(await stage.operator_requests(audit, namespace)) - applied
            )
    await stage.delete_jobs(namespace)
    await stage.wait_until_gone(namespace)
    return created, running


async def _status(stage: Stage, namespace: str) -> int:
    """Return the size of the largest status among a namespace's jobs, in bytes."""
    found = await stage.api.list("ddpjobs", namespace)
    return max(len(json.dumps(one.get("status", {}))) for one in found)
