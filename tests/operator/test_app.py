"""The operator as a process, with an API server over real HTTP."""

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
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from ddp_operator.builders.service import build_service
from tests.operator.fake_api import FakeApi, refusal
from tests.operator.support import active_job, job_manifest, pod_manifest, to_wire


class Process:
    """Running `ddp-operator` process."""

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
        """Wait until /readyz answers 200 with this text."""
        deadline, found = time.monotonic() + 60, (0, "")
        while time.monotonic() < deadline:
            found = await self.get("/readyz")
            if found == (200, text):
                return
            assert self.child.returncode is None, await self.ended()
            await asyncio.sleep(0.05)
        raise AssertionError(found)

    async def ended(self) -> tuple[int, str]:
        """Wait for the end of the process. Return its exit code and its log."""
        _, log = await asyncio.wait_for(self.child.communicate(), 30)
        assert self.child.returncode is not None
        return self.child.returncode, log.decode()


@contextlib.asynccontextmanager
async def operator(api: FakeApi, folder: Path, **settings: str) -> AsyncIterator[Process]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    defaults = {
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
            **{f"DDP_OPERATOR_{name}": value for name, value in defaults.items()},
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


@pytest.mark.slow
async def test_process_that_loses_the_lease_exits_with_one_log_line(
    api: FakeApi, tmp_path: Path
) -> None:
    async with operator(api, tmp_path) as process:
        await process.until_ready("ok")
        assert api.leases.holder.startswith("pod-1_")
        api.leases.give_to("other")
        code, log = await process.ended()
        assert code == 1
        last = log.splitlines()[-1]
        assert last.endswith("CRITICAL ddp_operator: this process ends: the Lease is held by other")
        assert "Traceback" not in log
        assert api.leases.holder == "other"


@pytest.mark.slow
async def test_process_that_cannot_renew_the_lease_exits(api: FakeApi, tmp_path: Path) -> None:
    async with operator(api, tmp_path, LOG_FORMAT="json") as process:
        await process.until_ready("ok")
        api.fault = lambda _: refusal(500, "etcd is unavailable")
        code, log = await process.ended()
        assert code == 1
        last = json.loads(log.splitlines()[-1])
        assert last["level"] == "CRITICAL"
        assert "the Lease was not renewed for 4 s" in last["message"]
        assert api.leases.holder.startswith("pod-1_"), (
            "the Lease is not released, so it must expire"
        )


@pytest.mark.slow
async def test_paused_process_exits_and_does_not_write_the_lease(
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


@pytest.mark.slow
async def test_standby_replica_takes_over_after_the_leader_ends(
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
        await waiting.until_ready(f"standing by: {leader} holds the Lease")
        assert await waiting.get("/healthz") == (200, "ok")
        leading.child.terminate()
        code, log = await leading.ended()
        assert (code, log.splitlines()[-1].partition(" INFO ")[2]) == (
            0,
            "ddp_operator.runtime.leader: the Lease is released",
        )
        await waiting.until_ready("ok")
        assert api.leases.holder not in {leader, ""}
        waiting.child.terminate()
        assert (await waiting.ended())[0] == 0


@pytest.mark.slow
async def test_process_without_leader_election_does_not_use_the_lease(
    api: FakeApi, tmp_path: Path
) -> None:
    async with operator(api, tmp_path, LEADER_ELECTION="false") as process:
        await process.until_ready("ok")
        process.child.terminate()
        code, log = await process.ended()
        assert code == 0, log
        assert not [path for _, path in api.requests if "leases" in path]


@pytest.mark.slow
async def test_process_without_the_right_to_watch_nodes_is_ready_and_logs_this_once(
    api: FakeApi, tmp_path: Path
) -> None:
    nodes = "/api/v1/nodes"
    api.fault = lambda r: refusal(403, "nodes is forbidden") if r.path == nodes else None
    async with operator(api, tmp_path, WATCH_NODES="true") as process:
        await process.until_ready("ok")
        await eventually(lambda: api.requests.count(("GET", nodes)) > 1)
        assert await process.get("/readyz") == (200, "ok")
        process.child.terminate()
        code, log = await process.ended()
    assert code == 0, log
    assert log.count("the Kubernetes nodes are not watched") == 1
    assert "Traceback" not in log


@pytest.mark.slow
async def test_process_watches_no_kubernetes_nodes_by_default(api: FakeApi, tmp_path: Path) -> None:
    async with operator(api, tmp_path) as process:
        await process.until_ready("ok")
        await eventually(lambda: "/api/v1/pods" in api.watched())
        process.child.terminate()
        assert (await process.ended())[0] == 0
    assert not [path for _, path in api.requests if "nodes" in path]


@pytest.mark.slow
async def test_process_waits_for_an_unavailable_api_server(api: FakeApi, tmp_path: Path) -> None:
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
async def test_process_reexecutes_itself_when_the_api_server_was_restored(
    api: FakeApi, tmp_path: Path
) -> None:
    """The restored job is written at once, and new watches start at the restored version."""
    job, written = job_manifest(), list[int]()
    job["metadata"]["resourceVersion"] = "9000"

    async def write(request: web.Request) -> None:
        if request.method == "PUT" and request.path.endswith("/status"):
            written.append(int((await request.json())["metadata"]["resourceVersion"]))
            job["metadata"]["resourceVersion"] = "40"

    def answer(request: web.Request) -> web.StreamResponse | None:
        if request.method == "PUT" and request.path.endswith("/status"):
            return refusal(409, "the object has been modified")
        if request.path.endswith("/ddpjobs/digits"):
            return web.json_response(job)
        if request.path.endswith("/ddpjobs") and request.query.get("watch") != "true":
            return web.json_response({"items": [job], "metadata": version})
        return None

    version = {"resourceVersion": "9000"}
    api.before, api.fault = write, answer
    async with operator(api, tmp_path) as process:
        await eventually(lambda: 40 in written)
        process.child.terminate()
        code, log = await process.ended()
        assert code == 0, log
        assert written[0] == 9000
        assert log.count("re-executing the operator: the API server has older versions") == 1
        assert "Traceback" not in log


@pytest.mark.slow
async def test_deleted_pod_that_no_watch_reports_is_found_by_its_silent_agent(
    api: FakeApi, tmp_path: Path
) -> None:
    job, attempts, gone = active_job(nodes=1), list[int](), False
    raw = {**job_manifest(nodes=1), "status": to_wire(job.status)}
    pod = pod_manifest(job, podIP="127.0.0.1", conditions=[{"type": "Ready", "status": "True"}])
    service = {**build_service(job)}
    service["metadata"] |= {"uid": "s", "resourceVersion": "1"}
    objects = {"ddpjobs": [raw], "pods": [pod], "services": [service]}

    async def write(request: web.Request) -> None:
        if request.method == "PUT" and request.path.endswith("/status"):
            attempts.append((await request.json())["status"]["attempt"])

    def answer(request: web.Request) -> web.StreamResponse | None:
        if request.method == "PUT" and request.path.endswith("/status"):
            return refusal(409, "the object has been modified")
        if request.path.endswith("/ddpjobs/digits"):
            return web.json_response(raw)
        plural, of_job = request.path.rpartition("/")[2], "job-uid" in request.query_string
        if plural not in objects or request.query.get("watch") == "true":
            return None
        items = [] if of_job and gone else objects[plural]
        return web.json_response({"items": items, "metadata": {"resourceVersion": "9"}})

    api.before, api.fault = write, answer
    async with operator(api, tmp_path) as process:
        await process.until_ready("ok")
        gone = True
        await eventually(lambda: 2 in attempts)


@pytest.mark.slow
async def test_watches_of_a_namespace_that_refuses_the_operator_retry(
    api: FakeApi, tmp_path: Path
) -> None:
    """The watches of other namespaces continue, and the refused watches need no restart."""
    jobs: dict[str, Any] = {}
    written, tries, refused = set[str](), list[str](), True
    for namespace in ("a", "b"):
        jobs[namespace] = job_manifest()
        jobs[namespace]["metadata"]["namespace"] = namespace

    def answer(request: web.Request) -> web.StreamResponse | None:
        namespace = next((n for n in jobs if f"/namespaces/{n}/" in request.path), None)
        if namespace is None:
            return None
        if namespace == "b" and refused:
            tries.append(request.path.rpartition("/")[2])
            return refusal(403, "no RoleBinding in b")
        if request.method == "PUT" and request.path.endswith("/status"):
            written.add(namespace)
            return refusal(409, "the object has been modified")
        if request.path.endswith("/ddpjobs/digits"):
            return web.json_response(jobs[namespace])
        if request.path.endswith("/ddpjobs") and request.query.get("watch") != "true":
            listed = {"items": [jobs[namespace]], "metadata": {"resourceVersion": "9"}}
            return web.json_response(listed)
        return None

    def watched(plural: str = "ddpjobs") -> set[str]:
        return {path.split("/")[-2] for path in api.watched() if path.endswith(f"/{plural}")}

    api.fault = answer
    async with operator(api, tmp_path, NAMESPACES="a,b") as process:
        await process.until_ready("ok\nthe namespace b is not served: no RoleBinding in b")
        await eventually(lambda: watched() == {"a"} == written)
        await eventually(lambda: min(map(tries.count, ("ddpjobs", "pods", "services"))) >= 4)
        refused = False
        await eventually(lambda: watched() == {"a", "b"} == written)
        await eventually(lambda: watched("pods") == {"a", "b"} == watched("services"))
        process.child.terminate()
        code, log = await process.ended()
        assert code == 0, log
        assert "re-executing" not in log


@pytest.mark.slow
async def test_process_reexecutes_itself_and_is_not_ready_when_watches_end(
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
        code, log = await process.ended()
        assert code == 0, log
        assert log.count("re-executing the operator: jobs cannot be watched: ") == 1
        assert "Traceback" not in log
