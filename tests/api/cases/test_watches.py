"""Watches that break, fall behind or fall silent, and reads that lag behind."""

import asyncio
import base64
import json
import time
import urllib.request
from typing import Any

import pytest

from tests.api.client import eventually
from tests.api.job import Job
from tests.api.plane import Plane
from tests.api.proxy import Proxy
from tests.harness import paths

pytestmark = [pytest.mark.api, pytest.mark.usefixtures("operator")]


def compact() -> None:
    """Let the store forget all versions but the present ones."""
    revision = ask_store("kv/range", {"key": base64.b64encode(b"/").decode()})["header"]["revision"]
    ask_store("kv/compaction", {"revision": revision, "physical": True})


def ask_store(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """One request to etcd."""
    url = f"http://127.0.0.1:{paths.ETCD_CLIENT_PORT}/v3/{path}"
    request = urllib.request.Request(url, json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
        found: dict[str, Any] = json.load(answer)
        return found


async def test_case_12_a_watch_that_is_too_old_is_followed_by_one_list_and_one_attempt(
    plane: Plane, proxy: Proxy, job: Job
) -> None:
    await job.train()
    before = await job.uids()
    with proxy.outage():
        await job.fail_rank(1)
        # A new API server remembers no events, and after a compaction the store has none either:
        # whoever asks for those of before is told 410 Gone.
        await asyncio.to_thread(compact)
        await asyncio.to_thread(plane.cluster.apiserver_stop)
        await asyncio.to_thread(plane.cluster.apiserver_start)
        back = time.monotonic()
    await job.pods_of_attempt(2)
    kinds = ("ddpjobs", "pods", "services")

    def lists() -> dict[str, int]:
        return {k: proxy.count(back, verb="list", resource=k, namespace="") for k in kinds}

    async def relisted() -> bool:
        return all(lists().values())

    # The attempt does not wait for this: its agents have told of the loss.
    await eventually(relisted, "each kind is listed anew")
    await job.join(attempt=2)
    await job.wait_for("Running")
    assert ((await job.status())["attempt"], await job.uids()) == (2, before)
    assert max(lists().values()) <= 3, lists()


@pytest.mark.parametrize(
    ("every", "seconds"), [(0.5, 6.0), pytest.param(2.0, 300.0, marks=pytest.mark.sweep)]
)
@pytest.mark.timeout(400)
async def test_case_13_watches_that_break_all_the_time_delay_nothing_and_cause_no_lists(
    proxy: Proxy, job: Job, every: float, seconds: float
) -> None:
    async def cut() -> None:
        while True:
            proxy.cut_watches()
            await asyncio.sleep(every)

    cutting = asyncio.create_task(cut())
    begun = time.monotonic()
    try:
        await job.train(maxRestarts=1000)
        await job.fail_rank(0)
        await job.pods_of_attempt(2)
        await job.join(attempt=2)
        await job.wait_for("Running")
        attempt = 2
        while time.monotonic() < begun + seconds:
            await job.fail_rank(0, attempt)
            attempt += 1
            await job.pods_of_attempt(attempt)
            await job.join(attempt)
            await job.progress(step=10 * attempt, attempt=attempt)
            await job.wait_for("Running")
            await asyncio.sleep(min(5.0, seconds / 3))
    finally:
        cutting.cancel()
    assert (await job.status())["attempt"] == attempt
    assert proxy.count(since=begun, verb="list", namespace="") <= 3
    assert proxy.count(since=begun, verb="watch") <= 3 * (1 + (time.monotonic() - begun) / every)


@pytest.mark.sweep
async def test_case_14_a_silent_watch_is_found_out_within_75_seconds(
    proxy: Proxy, job: Job, other_job: Job
) -> None:
    await job.train()
    assert proxy.mute_watches() == 3
    silent = time.monotonic()
    await other_job.create()
    pod = (await job.pods())[1]
    await job.kubelet.end(pod, 1, None)
    await other_job.pods_of_attempt(1, seconds=90)
    await job.wait_for_message("attempt 2", seconds=90)
    assert time.monotonic() - silent < 75
