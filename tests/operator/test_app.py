"""The operator as a process, against an API server over real HTTP."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from tests.operator.fake_api import FakeApi, refusal


class Process:
    """A running `ddp-operator`."""

    def __init__(self, child: asyncio.subprocess.Process, port: int) -> None:
        self.child, self.port = child, port

    async def get(self, path: str) -> tuple[int, str]:
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://127.0.0.1:{self.port}{path}") as answer,
            ):
                return answer.status, (await answer.text()).strip()
        except aiohttp.ClientError:
            return 0, ""

    async def until_ready(self, text: str) -> None:
        """Wait until /readyz says so."""
        deadline, found = time.monotonic() + 60, (0, "")
        while time.monotonic() < deadline:
            found = await self.get("/readyz")
            if found == (200, text):
                return
            assert self.child.returncode is None, await self.ended()
            await asyncio.sleep(0.05)
        raise AssertionError(found)

    async def ended(self) -> tuple[int, str]:
        """Its exit code and what it logged."""
        _, said = await asyncio.wait_for(self.child.communicate(), 30)
        assert self.child.returncode is not None
        return self.child.returncode, said.decode()


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    found = FakeApi()
    await found.start()
    yield found
    await found.stop()


@contextlib.asynccontextmanager
async def operator(api: FakeApi, folder: Path, **settings: str) -> AsyncIterator[Process]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mine = {
        "TRAINER_IMAGE": "mine:1",
        "HEALTH_PORT": str(port),
        "LEASE_NAMESPACE": "ddp-system",
        "LEASE_SECONDS": "6",
        "RENEW_SECONDS": "4",
        "RETRY_SECONDS": "0.3",
        "IDENTITY": "pod-1",
        **settings,
    }
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "ddp_operator.app",
        env={
            **os.environ,
            "KUBECONFIG": str(api.kubeconfig(folder)),
            **{f"DDP_OPERATOR_{name}": value for name, value in mine.items()},
        },
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield Process(child, port)
    finally:
        if child.returncode is None:
            child.kill()
            await child.communicate()


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_a_process_that_loses_the_lease_ends_with_one_line(
    api: FakeApi, tmp_path: Path
) -> None:
    async with operator(api, tmp_path) as process:
        await process.until_ready("ok")
        assert api.leases.holder.startswith("pod-1_")
        api.leases.give_to("other")
        code, said = await process.ended()
        assert code == 1
        last = said.splitlines()[-1]
        assert last.endswith("CRITICAL ddp_operator: this process ends: the Lease is held by other")
        assert "Traceback" not in said
        assert api.leases.holder == "other"


@pytest.mark.slow
async def test_a_process_that_cannot_renew_the_lease_ends(api: FakeApi, tmp_path: Path) -> None:
    async with operator(api, tmp_path, LOG_FORMAT="json") as process:
        await process.until_ready("ok")
        api.fault = lambda _: refusal(500, "etcd is away")
        code, said = await process.ended()
        assert code == 1
        last = json.loads(said.splitlines()[-1])
        assert last["level"] == "CRITICAL"
        assert "the Lease was not renewed for 4 s" in last["message"]
        assert api.leases.holder.startswith("pod-1_"), "it runs out by itself"


@pytest.mark.slow
async def test_a_process_that_was_paused_ends_and_leaves_the_lease_to_the_next(
    api: FakeApi, tmp_path: Path
) -> None:
    async with operator(api, tmp_path) as process:
        await process.until_ready("ok")
        process.child.send_signal(signal.SIGSTOP)
        await asyncio.sleep(4.5)
        api.leases.give_to("other")
        written = len(api.leases.writers)
        process.child.send_signal(signal.SIGCONT)
        code, _ = await process.ended()
        assert code == 1
        assert len(api.leases.writers) == written


async def test_a_replica_stands_by_until_the_leader_ends_and_then_takes_over(
    api: FakeApi, tmp_path: Path
) -> None:
    async with (
        operator(api, tmp_path) as first,
        operator(api, tmp_path, IDENTITY="pod-2") as second,
    ):
        await eventually(lambda: bool(api.leases.holder))
        leading, waiting = (
            (first, second) if api.leases.holder.startswith("pod-1") else (second, first)
        )
        leader = api.leases.holder
        await leading.until_ready("ok")
        await waiting.until_ready(f"standing by: {leader} leads")
        assert await waiting.get("/healthz") == (200, "ok")
        leading.child.terminate()
        code, said = await leading.ended()
        assert (code, said.splitlines()[-1].partition(" INFO ")[2]) == (
            0,
            "ddp_operator.runtime.leader: the Lease is released",
        )
        await waiting.until_ready("ok")
        assert api.leases.holder not in {leader, ""}
        waiting.child.terminate()
        assert (await waiting.ended())[0] == 0


async def test_a_process_that_is_told_to_be_alone_asks_for_no_lease(
    api: FakeApi, tmp_path: Path
) -> None:
    async with operator(api, tmp_path, LEADER_ELECTION="false") as process:
        await process.until_ready("ok")
        process.child.terminate()
        code, said = await process.ended()
        assert code == 0, said
        assert not [path for _, path in api.seen if "leases" in path]


@pytest.mark.slow
async def test_an_api_server_that_is_away_at_first_is_waited_for(
    api: FakeApi, tmp_path: Path
) -> None:
    api.fault = lambda r: refusal(503, "starting") if "ddpjobs" in r.path else None
    async with operator(api, tmp_path) as process:
        sentence = "jobs and pods have not been listed yet: starting"
        async with asyncio.timeout(30):
            while await process.get("/readyz") != (503, sentence):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert await process.get("/healthz") == (200, "ok")
        api.fault = lambda _: None
        await process.until_ready("ok")


@pytest.mark.slow
async def test_when_nothing_can_be_watched_any_more_it_begins_anew_and_is_not_ready(
    api: FakeApi, tmp_path: Path
) -> None:
    def without_crd(request: web.Request) -> web.StreamResponse | None:
        return refusal(404, "no such resource") if "ddpjobs" in request.path else None

    async with operator(api, tmp_path) as process:
        await process.until_ready("ok")
        api.fault = without_crd
        api.drop_watches()
        async with asyncio.timeout(30):
            while (await process.get("/readyz"))[0] != 503:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        api.fault = lambda _: None
        await process.until_ready("ok")
        process.child.terminate()
        code, said = await process.ended()
        assert code == 0, said
        assert said.count("beginning anew: jobs and pods cannot be watched: ") == 1
        assert "Traceback" not in said
