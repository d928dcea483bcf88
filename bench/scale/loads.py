"""Measure the loads: one large job, and many small jobs."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

from bench.scale.audit import by_verb, last_pod_changes, last_pod_created
from bench.scale.meter import (
    LoopProbe,
    cpu_seconds,
    peak_megabytes,
    percentile,
    reset_peak,
    resident_megabytes,
)
from bench.scale.stage import RunningTimes, Stage, job
from tests.api.client import path_of

_REST_SECONDS = 10.0
_RELIST_SECONDS = 75.0
"""Seconds after which the operator has certainly listed all objects again and released memory."""
_STEADY_SECONDS = 90.0
"""Seconds for which many running jobs are measured. They include at least one relist."""


@dataclass
class OneJob:
    """Figures of the load with one large job."""

    nodes: int
    created: float = 0.0
    """Seconds from apply to the last pod's creation."""
    status_delay: float = 0.0
    """Seconds from the moment at which the last pod ran until the status showed it."""
    requests: int = 0
    """Number of the operator's requests until the job was Running."""
    requests_by_verb: str = ""
    rest_requests: int = 0
    """Number of the operator's requests in the 10 s after the job was Running."""
    cpu_seconds: float = 0.0
    loop_p99: float = 0.0
    peak_megabytes: float = 0.0
    gone: float = 0.0
    """Seconds from the deletion of the job to the end of its last pod."""
    pod: dict[str, Any] = field(default_factory=dict, repr=False)
    """One of the job's pods, as the API server returns it."""


async def one_job(stage: Stage, namespace: str, nodes: int, *, elastic: bool = False) -> OneJob:
    """Apply one job, wait until it runs, and delete it."""
    found = OneJob(nodes)
    await stage.api.create_namespace(namespace)
    audit, running = stage.audit(), RunningTimes(stage.api, namespace)
    reset_peak(stage.pid)
    used, applied = cpu_seconds(stage.pid), time.time()
    with LoopProbe(stage.operator.health_port) as probe:
        async with running.watching():
            await stage.api.apply_job(namespace, job("large", nodes, elastic=elastic))
            await running.wait_for(1)
            found.cpu_seconds = cpu_seconds(stage.pid) - used
        seen = running.times["large"]
        everything = await stage.all_requests(audit, namespace)
        ours = await stage.operator_requests(audit, namespace)
        found.created = last_pod_created(ours) - applied
        found.status_delay = seen - last_pod_changes(everything)["large"]
        to_running = [request for request in ours if request.received <= seen]
        found.requests, found.requests_by_verb = len(to_running), by_verb(to_running)
        await asyncio.sleep(_REST_SECONDS)
        found.rest_requests = len(await stage.operator_requests(audit, namespace)) - len(ours)
        path = path_of("pods", namespace)
        found.pod = (await stage.api.call("GET", path, query={"limit": "1"}))["items"][0]
        await stage.api.call("DELETE", path_of("ddpjobs", namespace, "large"))
        found.gone = await stage.wait_until_gone(namespace)
    found.loop_p99 = percentile(probe.seconds, 0.99)
    found.peak_megabytes = peak_megabytes(stage.pid)
    return found


@dataclass
class ManyJobs:
    """Figures of the load with many small jobs."""

    jobs: int
    nodes: int
    elastic: bool = False
    running: float = 0.0
    """Seconds from the first apply until all jobs are Running."""
    pods_per_second: float = 0.0
    status_p99: float = 0.0
    """Seconds from the moment at which a job's last pod ran until its status showed it, 99th
    percentile."""
    resident_megabytes: float = 0.0
    peak_megabytes: float = 0.0
    cores: float = 0.0
    """CPU seconds of the operator per second while all jobs train."""
    writes_per_second: float = 0.0
    loop_p99: float = 0.0
    restart: float = 0.0
    """Seconds from the start of a new operator process to its first correct action."""
    caught_up: float = 0.0
    """Seconds from the start of a new operator process until it has reconciled every job."""
    gone: float = 0.0
    megabytes_before: float = 0.0
    megabytes_after: float = 0.0
    notes: list[str] = field(default_factory=list)


async def many_jobs(
    stage: Stage, namespace: str, jobs: int, nodes: int, *, elastic: bool = False
) -> ManyJobs:
    """Apply many jobs at once, let them train, restart the operator, and delete them."""
    found = ManyJobs(jobs, nodes, elastic)
    await stage.api.create_namespace(namespace)
    found.megabytes_before = resident_megabytes(stage.pid)
    await _start_jobs(stage, namespace, found)
    await _train(stage, namespace, found)
    await _restart(stage, namespace, found)
    await stage.delete_jobs(namespace)
    found.gone = await stage.wait_until_gone(namespace)
    await asyncio.sleep(_RELIST_SECONDS)
    found.megabytes_after = resident_megabytes(stage.pid)
    return found


async def _start_jobs(stage: Stage, namespace: str, found: ManyJobs) -> None:
    audit, running = stage.audit(), RunningTimes(stage.api, namespace)
    applied = time.time()
    async with running.watching():
        names = [f"j{number:04d}" for number in range(found.jobs)]
        manifests = [job(name, found.nodes, elastic=found.elastic) for name in names]
        await asyncio.gather(*(stage.api.apply_job(namespace, one) for one in manifests))
        await running.wait_for(found.jobs)
    found.running = max(running.times.values()) - applied
    requests = await stage.all_requests(audit, namespace)
    created = last_pod_created(requests) - applied
    found.pods_per_second = found.jobs * found.nodes / created
    changes = last_pod_changes(requests)
    delays = [running.times[name] - changes[name] for name in names]
    found.status_p99 = percentile(delays, 0.99)


async def _train(stage: Stage, namespace: str, found: ManyJobs) -> None:
    audit = stage.audit()
    reset_peak(stage.pid)
    used, started = cpu_seconds(stage.pid), time.monotonic()
    with LoopProbe(stage.operator.health_port) as probe:
        await asyncio.sleep(_STEADY_SECONDS)
    elapsed = time.monotonic() - started
    found.cores = (cpu_seconds(stage.pid) - used) / elapsed
    found.resident_megabytes = resident_megabytes(stage.pid)
    found.peak_megabytes = peak_megabytes(stage.pid)
    found.loop_p99 = percentile(probe.seconds, 0.99)
    writes = await stage.operator_requests(audit, namespace)
    found.writes_per_second = sum(r.resource == "ddpjobs/status" for r in writes) / elapsed
    found.notes.append(f"while training: {by_verb(writes)}")


async def _restart(stage: Stage, namespace: str, found: ManyJobs) -> None:
    """Restart the operator. The new process must at once notice a pod deleted in between."""
    await stage.operator.terminate()
    victim = (await stage.api.list("pods", namespace))[0]["metadata"]
    await stage.api.call("DELETE", path_of("pods", namespace, victim["name"]))
    owner = victim["ownerReferences"][0]["name"]
    audit, started = stage.audit(), time.time()
    stage.operator.start()
    await stage.operator.wait_until_ready(120.0)
    found.caught_up = time.time() - started
    async with asyncio.timeout(120.0):
        while True:
            requests = await stage.operator_requests(audit, namespace)
            right = [r.answered for r in requests if r.verb != "list" and owner in r.name]
            if right:
                break
    found.restart = min(right) - started
