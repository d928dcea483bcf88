"""Tests of watches that break, expire or send nothing."""

import asyncio
import base64
import json
import time
import urllib.request
from typing import Any

import pytest

from tests.api.client import eventually
from tests.api.control_plane import ControlPlane
from tests.api.job import Job
from tests.api.operator_process import WATCHED
from tests.api.proxy import FaultProxy
from tests.harness import paths

pytestmark = [pytest.mark.api, pytest.mark.usefixtures("operator")]


def compact_etcd() -> None:
    """Let etcd drop all revisions except the newest one."""
    revision = call_etcd("kv/range", {"key": base64.b64encode(b"/").decode()})["header"]["revision"]
    call_etcd("kv/compaction", {"revision": revision, "physical": True})


def call_etcd(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Send one request to etcd and return the answer."""
    url = f"http://127.0.0.1:{paths.ETCD_CLIENT_PORT}/v3/{path}"
    request = urllib.request.Request(url, json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
        found: dict[str, Any] = json.load(answer)
        return found


async def test_expired_watch_causes_one_list_and_one_attempt(
    control_plane: ControlPlane, proxy: FaultProxy, job: Job
) -> None:
    await job.train()
    before = await job.uids()
    with proxy.outage():
        await job.fail_rank(1)
        # A restarted API server has no event history, and a compacted etcd has none either.
        # Watches from an older resource version therefore get 410 Gone.
        await asyncio.to_thread(compact_etcd)
        await asyncio.to_thread(control_plane.cluster.apiserver_stop)
        await asyncio.to_thread(control_plane.cluster.apiserver_start)
        back = time.monotonic()
    await job.pods_of_attempt(2)

    def lists() -> dict[str, int]:
        return {k: proxy.count(back, verb="list", resource=k, namespace="") for k in WATCHED}

    async def relisted() -> bool:
        return all(lists().values())

    # The attempt does not wait for the lists, because the agents reported the fault.
    await eventually(relisted, "the operator lists each kind again")
    await job.start_training(attempt=2)
    await job.wait_for("Running")
    assert ((await job.status())["attempt"], await job.uids()) == (2, before)
    assert max(lists().values()) <= 3, lists()


@pytest.mark.parametrize(
    ("every", "seconds"), [(0.5, 6.0), pytest.param(2.0, 300.0, marks=pytest.mark.sweep)]
)
@pytest.mark.timeout(400)
async def test_repeatedly_broken_watches_cause_no_delay_and_no_lists(
    proxy: FaultProxy, job: Job, every: float, seconds: float
) -> None:
    async def cut() -> None:
        while True:
            proxy.cut_watches()
            await asyncio.sleep(every)

    cutting = asyncio.create_task(cut())
    started = time.monotonic()
    try:
        await job.train(maxRestarts=1000)
        await job.fail_rank(0)
        await job.pods_of_attempt(2)
        await job.start_training(attempt=2)
        await job.wait_for("Running")
        attempt = 2
        while time.monotonic() < started + seconds:
            await job.fail_rank(0, attempt)
            attempt += 1
            await job.pods_of_attempt(attempt)
            await job.start_training(attempt)
            await job.wait_for("Running")
            await job.save(step=10 * attempt, attempt=attempt)
    finally:
        cutting.cancel()
    assert (await job.status())["attempt"] == attempt
    assert proxy.count(since=started, verb="list", namespace="") <= len(WATCHED)
    assert proxy.count(since=started, verb="watch") <= len(WATCHED) * (
        1 + (time.monotonic() - started) / every
    )


@pytest.mark.sweep
async def test_operator_detects_a_silent_watch_within_75_seconds(
    proxy: FaultProxy, job: Job, other_job: Job
) -> None:
    await job.train()

    async def all_open() -> bool:
        return proxy.open_watches == len(WATCHED)

    # An earlier test may have broken them.
    await eventually(all_open, "all watches are open")
    assert proxy.mute_watches() == len(WATCHED)
    silent = time.monotonic()
    await other_job.create()
    pod = (await job.pods())[1]
    await job.kubelet.end_container(pod, 1, None)
    await other_job.pods_of_attempt(1, seconds=90)
    await job.wait_for_message("attempt 2", seconds=90)
    assert time.monotonic() - silent < 75
