"""What a job costs the API server, counted in its audit log."""

import asyncio
import time
from collections import Counter

import pytest

from tests.api.client import eventually
from tests.api.job import Job
from tests.api.plane import Plane

pytestmark = [pytest.mark.api, pytest.mark.usefixtures("operator")]


@pytest.mark.parametrize("nodes", [2, 8, 32])
async def test_a_job_of_n_pods_runs_after_n_plus_eight_requests(
    plane: Plane, job: Job, nodes: int
) -> None:
    await job.train(nodes=nodes)
    # The last of them are Events, which nobody waits for.
    await eventually(lambda: _told(job), "the Event that it runs")
    counted = Counter(_what(entry) for entry in plane.audit(job.namespace))
    assert counted["create pods"] == nodes
    assert counted.total() <= nodes + 8, counted


async def test_progress_that_changes_all_the_time_costs_two_status_writes_per_ten_seconds(
    plane: Plane, job: Job
) -> None:
    await job.train()
    await job.progress(step=1)
    begun, written = time.monotonic(), _status_writes(plane, job)
    seconds = 11.0
    while time.monotonic() < begun + seconds:
        await job.progress(step=1 + int(10 * (time.monotonic() - begun)))
        await asyncio.sleep(0.1)
    writes = _status_writes(plane, job) - written
    assert 2 <= writes <= 3, "one at once, and then two in ten seconds"
    assert (await job.status())["progress"]["step"] > 20


def _what(entry: dict[str, dict[str, str]]) -> str:
    reference = entry["objectRef"]
    part = f"/{reference['subresource']}" if "subresource" in reference else ""
    return f"{entry['verb']} {reference['resource']}{part}"


def _status_writes(plane: Plane, job: Job) -> int:
    counted = Counter(_what(entry) for entry in plane.audit(job.namespace))
    return counted["update ddpjobs/status"]


async def _told(job: Job) -> bool:
    events = await job.api.list("events", job.namespace)
    return any(event["reason"] == "Running" for event in events)
