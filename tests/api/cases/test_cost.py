"""Tests of how many API requests a job costs, counted in the audit log."""

import asyncio
import time
from collections import Counter

import pytest

from tests.api.client import eventually
from tests.api.control_plane import ControlPlane
from tests.api.job import Job

pytestmark = [pytest.mark.api, pytest.mark.usefixtures("operator")]


@pytest.mark.parametrize("nodes", [2, 8, 32])
async def test_job_of_n_pods_starts_within_n_plus_eight_requests(
    control_plane: ControlPlane, job: Job, nodes: int
) -> None:
    await job.train(nodes=nodes)
    # Events are the last requests, and no status depends on them.
    await eventually(lambda: _has_running_event(job), "the Running Event")
    counted = Counter(_what(entry) for entry in control_plane.audit(job.namespace))
    assert counted["create pods"] == nodes
    assert counted.total() <= nodes + 8, counted


async def test_constant_progress_costs_two_status_writes_per_ten_seconds(
    control_plane: ControlPlane, job: Job
) -> None:
    await job.train()
    await job.report_progress(step=1)
    started, written = time.monotonic(), _status_writes(control_plane, job)
    seconds = 11.0
    while time.monotonic() < started + seconds:
        await job.report_progress(step=1 + int(10 * (time.monotonic() - started)))
        await asyncio.sleep(0.1)
    writes = _status_writes(control_plane, job) - written
    assert 2 <= writes <= 3, "one write at once, then two in ten seconds"
    assert (await job.status())["progress"]["step"] > 20


def _what(entry: dict[str, dict[str, str]]) -> str:
    reference = entry["objectRef"]
    part = f"/{reference['subresource']}" if "subresource" in reference else ""
    return f"{entry['verb']} {reference['resource']}{part}"


def _status_writes(control_plane: ControlPlane, job: Job) -> int:
    counted = Counter(_what(entry) for entry in control_plane.audit(job.namespace))
    return counted["update ddpjobs/status"]


async def _has_running_event(job: Job) -> bool:
    events = await job.api.list("events", job.namespace)
    return any(event["reason"] == "Running" for event in events)
