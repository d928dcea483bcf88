"""Watch of children, with an API server over real HTTP whose streams the tests play."""

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
from aiohttp import web
from kubernetes.aio import client

from ddp_operator.cluster.base import ClusterError, Listing, Manifest
from ddp_operator.cluster.kube import watch, watch_events
from ddp_operator.cluster.kube.connection import ApiConnection
from ddp_operator.cluster.kube.watch import ListWatch, watch_children, watch_nodes
from tests.operator.cluster.kube.watch_lines import JOB, bookmark, error, event
from tests.operator.fake_api import FakeApi, refusal
from tests.operator.support import pod_manifest

NODE: Manifest = {
    "metadata": {"name": "machine-0", "uid": "n", "resourceVersion": "7", "labels": {"a": "b"}},
    "spec": {"podCIDR": "10.0.0.0/24"},
    "status": {"images": [{"names": ["trainer"]}]},
}
Play = Callable[["Stream"], Awaitable[None]]


class Stream:
    """One open stream of the server."""

    def __init__(self, request: web.Request, response: web.StreamResponse) -> None:
        self.request, self._response = request, response

    async def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            await self._response.write(piece)

    def cut(self) -> None:
        assert self.request.transport is not None
        self.request.transport.abort()

    async def hold(self) -> None:
        await asyncio.sleep(3600)


class Server:
    """API server that plays a list of streams, and then holds the next one open."""

    def __init__(self, api: FakeApi) -> None:
        self.plays: list[Play | web.Response] = []
        self.pods: list[Manifest] = []
        self.version = 10
        self.log: list[str] = []
        """Each list, and the version at which each stream was opened."""
        self.queries: list[dict[str, str]] = []
        self.refusals: list[web.Response] = []
        """Answers to the next lists."""
        api.before = self._before
        api.fault = lambda _: self._response
        self._response: web.StreamResponse | None = None

    async def _before(self, request: web.Request) -> None:
        self._response = await self._answer(request)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if request.query.get("watch") != "true":
            self.log.append("list")
            if self.refusals:
                return self.refusals.pop(0)
            metadata = {"resourceVersion": str(self.version)}
            return web.json_response({"items": self.pods, "metadata": metadata})
        self.log.append(request.query["resourceVersion"])
        self.queries.append(dict(request.query))
        play = self.plays.pop(0) if self.plays else Stream.hold
        if isinstance(play, web.Response):
            return play
        response = web.StreamResponse()
        await response.prepare(request)
        await play(Stream(request, response))
        return response


class Recorder:
    """Sink that records all events and lists."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, str]] = []
        """Type and resource version of each event."""
        self.lists: list[list[str]] = []
        """Names in each list."""
        self.errors: list[str | None] = []

    def put(self, kind: str, child: Manifest) -> None:
        assert kind == "Pod"
        assert "managedFields" not in child["metadata"]
        self.taken.append(("put", child["metadata"]["resourceVersion"]))

    def drop(self, kind: str, child: Manifest) -> None:
        assert kind == "Pod"
        self.taken.append(("drop", child["metadata"]["resourceVersion"]))

    @contextlib.contextmanager
    def relist(self, kind: str, namespace: str | None) -> Iterator[Callable[[Listing], None]]:
        assert (kind, namespace) == ("Pod", None)
        yield lambda found: self.lists.append([i["metadata"]["name"] for i in found.items])

    def report(self, _kind: str, _namespace: str | None, error: ClusterError | None) -> None:
        self.errors.append(None if error is None else str(error))


class Bench:
    def __init__(self, api: FakeApi, connection: ApiConnection) -> None:
        self.server, self.sink, self.connection = Server(api), Recorder(), connection
        self.silent_seconds = 60.0

    async def until(self, holds: Callable[[], bool]) -> None:
        """Run the watch until a condition holds."""
        running = ListWatch(self.connection, "Pod", None, self.sink, self.silent_seconds)
        task = asyncio.ensure_future(running.run())
        try:
            async with asyncio.timeout(20):
                while not holds():
                    assert not task.done()
                    await asyncio.sleep(0.005)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def bench(api: FakeApi) -> AsyncIterator[Bench]:
    configuration = client.Configuration(host=api.address)
    connection = ApiConnection(client.ApiClient(configuration), in_flight=1)
    yield Bench(api, connection)
    await connection.close()


@pytest.fixture(autouse=True)
def short_backoffs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_events, "WATCH_PAUSES", (0.01, 0.02, 0.03, 0.05))


async def test_watch_lists_objects_and_then_follows_changes(bench: Bench) -> None:
    async def play(stream: Stream) -> None:
        await stream.send(event("ADDED", 1, version=11), event("MODIFIED", 1, version=12))
        await stream.send(event("DELETED", 1, version=13))
        await stream.hold()

    bench.server.pods = [pod_manifest(JOB)]
    bench.server.plays = [play]
    await bench.until(lambda: len(bench.sink.taken) == 3)
    assert bench.sink.lists == [["digits-0"]]
    assert bench.sink.taken == [("put", "11"), ("put", "12"), ("drop", "13")]
    assert bench.sink.errors == [None]
    (query,) = bench.server.queries
    assert 300 <= int(query.pop("timeoutSeconds")) <= 600
    assert query == {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "labelSelector": "app.kubernetes.io/managed-by=ddp-trainer",
        "resourceVersion": "10",
    }


@pytest.mark.parametrize("last", [event("ADDED", version=30), bookmark(30)], ids=["event", "mark"])
@pytest.mark.parametrize("cut", [False, True])
async def test_watch_continues_an_ended_stream_from_its_last_version(
    last: bytes, cut: bool, bench: Bench
) -> None:
    async def play(stream: Stream) -> None:
        await stream.send(last)
        if cut:
            await asyncio.sleep(0.05)  # Without it the connection loses the line, too.
            stream.cut()

    bench.server.plays = [play]
    await bench.until(lambda: len(bench.server.log) == 3)
    assert bench.server.log == ["list", "10", "30"]


async def test_watch_cuts_and_continues_a_silent_stream(bench: Bench) -> None:
    bench.silent_seconds = 0.2
    await bench.until(lambda: len(bench.server.log) == 4)
    assert bench.server.log == ["list", "10", "10", "10"]
    assert set(bench.sink.errors) == {None}


@pytest.mark.slow
async def test_bookmark_events_keep_a_stream_open(bench: Bench) -> None:
    async def play(stream: Stream) -> None:
        for version in range(20, 30):
            await stream.send(bookmark(version))
            await asyncio.sleep(0.1)

    bench.silent_seconds, bench.server.plays = 0.5, [play]
    await bench.until(lambda: len(bench.server.log) == 3)
    assert bench.server.log == ["list", "10", "29"]


@pytest.mark.parametrize("by", ["status", "event"])
async def test_expired_resource_version_causes_a_list(by: str, bench: Bench) -> None:
    async def play(stream: Stream) -> None:
        await stream.send(bookmark(20), error(410))

    bench.server.plays = [play if by == "event" else refusal(410, "too old")]
    await bench.until(lambda: len(bench.server.log) == 4)
    assert bench.server.log == ["list", "10", "list", "10"]
    assert not any(bench.sink.errors), "a version grows old without a fault"


@pytest.mark.parametrize(
    "garbage",
    [b"{not json\n", b"[]\n", b'{"type": "ADDED", "object": null}\n', error(500)],
    ids=["no json", "no event", "no object", "other error"],
)
async def test_malformed_watch_line_causes_a_list(garbage: bytes, bench: Bench) -> None:
    async def play(stream: Stream) -> None:
        await stream.send(event("ADDED", version=20), garbage)
        await stream.hold()

    bench.server.plays = [play]
    await bench.until(lambda: len(bench.server.log) == 4)
    assert bench.server.log == ["list", "10", "list", "10"]
    assert bench.sink.taken == [("put", "20")]


async def test_event_of_an_unknown_type_is_ignored(bench: Bench) -> None:
    async def play(stream: Stream) -> None:
        await stream.send(event("LATER", version=20), event("ADDED", version=21))
        await stream.hold()

    bench.server.plays = [play]
    await bench.until(lambda: bench.sink.taken == [("put", "21")])


@pytest.mark.parametrize("status", [403, 404, 500])
async def test_refused_lists_are_reported_and_repeated(status: int, bench: Bench) -> None:
    bench.server.refusals = [refusal(status, "no") for _ in range(6)]
    await bench.until(lambda: bench.sink.errors[-1:] == [None])
    assert bench.server.log == [*["list"] * 7, "10"]
    assert bench.sink.errors == [*["no"] * 6, None]


@pytest.mark.parametrize(
    ("status", "log"),
    [(403, ["list", "10", "10"]), (503, ["list", "10", "10"]), (404, ["list", "10", "list", "10"])],
)
async def test_refused_stream_is_reported_and_repeated(
    status: int, log: list[str], bench: Bench
) -> None:
    bench.server.plays = [refusal(status, "no")]
    await bench.until(lambda: len(bench.server.log) == len(log))
    assert (bench.server.log, bench.sink.errors[0]) == (log, "no")


async def test_watch_reads_credentials_again_after_a_401(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    reloaded: list[int] = []
    monkeypatch.setattr(bench.connection, "_reload_token", lambda: reloaded.append(1))
    bench.server.plays = [refusal(401, "Unauthorized")]
    await bench.until(lambda: len(bench.server.log) == 3)
    assert (bench.server.log, reloaded) == (["list", "10", "10"], [1])


async def test_watch_retries_when_the_server_is_gone(api: FakeApi, bench: Bench) -> None:
    await api.stop()
    await bench.until(lambda: len(bench.sink.errors) == 5)
    assert all("did not answer" in str(text) for text in bench.sink.errors)


async def test_unexpected_error_neither_ends_the_watch_nor_loses_an_object(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play(stream: Stream) -> None:
        await stream.send(event("ADDED", version=20))

    def fail(_kind: str, _child: Manifest) -> None:
        raise RuntimeError

    monkeypatch.setattr(bench.sink, "put", fail)
    bench.server.plays = [play]
    await bench.until(lambda: len(bench.server.log) == 4)
    assert bench.server.log == ["list", "10", "list", "10"]


async def test_long_line_in_many_pieces_is_read(bench: Bench) -> None:
    async def play(stream: Stream) -> None:
        line = event("ADDED", version=20, annotations={"other": "x" * 1_500_000})
        await stream.send(*(line[at : at + 70_000] for at in range(0, len(line), 70_000)))
        await stream.hold()

    bench.server.plays = [play]
    await bench.until(lambda: bench.sink.taken == [("put", "20")])


async def test_thousands_of_lines_let_the_event_loop_do_other_work(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = b"".join(event("MODIFIED", version=version) for version in range(3000))
    between: list[int] = []

    async def play(stream: Stream) -> None:
        await stream.send(lines)
        await stream.hold()

    async def other_work() -> None:
        while True:
            await asyncio.sleep(0)
            if not between or between[-1] != len(bench.sink.taken):
                between.append(len(bench.sink.taken))

    monkeypatch.setattr(watch, "_SLICE_SECONDS", 0.0)
    bench.server.plays = [play]
    other = asyncio.ensure_future(other_work())
    await bench.until(lambda: len(bench.sink.taken) == 3000)
    other.cancel()
    steps = [after - before for before, after in itertools.pairwise(between)]
    assert max(steps) == 1


async def test_watch_streams_take_no_connection_that_requests_need(bench: Bench) -> None:
    """The client of these tests allows one concurrent request."""
    kinds = ["Pod", "Service", "NetworkPolicy"]

    class Nothing(Recorder):
        relist = contextlib.contextmanager(lambda *_: iter([lambda _: None]))

    task = asyncio.ensure_future(watch_children(bench.connection, kinds, ["a", "b"], Nothing()))
    async with asyncio.timeout(20):
        while len(bench.server.queries) < 6:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        begun = time.monotonic()
        assert await bench.connection.get("/api/v1/namespaces/a/pods/x") is not None
        assert time.monotonic() - begun < 5
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_kubernetes_nodes_are_watched_without_a_selector(api: FakeApi, bench: Bench) -> None:
    taken: list[tuple[str, Manifest]] = []

    class Nodes(Recorder):
        def put(self, kind: str, child: Manifest) -> None:
            taken.append((kind, child))

        @contextlib.contextmanager
        def relist(self, kind: str, namespace: str | None) -> Iterator[Callable[[Listing], None]]:
            assert (kind, namespace) == ("Node", None)
            yield lambda found: taken.extend(("list", one) for one in found.items)

    async def play(stream: Stream) -> None:
        changed = {**NODE, "spec": {"unschedulable": True}}
        await stream.send(json.dumps({"type": "MODIFIED", "object": changed}).encode() + b"\n")
        await stream.hold()

    bench.server.pods, bench.server.plays = [NODE], [play]
    task = asyncio.ensure_future(watch_nodes(bench.connection, Nodes()))
    async with asyncio.timeout(20):
        while len(taken) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    metadata = {
        "name": "machine-0",
        "uid": "n",
        "resourceVersion": "7",
        "labels": {"a": "b"},
    }
    assert taken == [
        ("list", {"metadata": metadata, "spec": {}}),
        ("Node", {"metadata": metadata, "spec": {"unschedulable": True}}),
    ]
    assert {path for _, path in api.requests} == {"/api/v1/nodes"}
    (query,) = bench.server.queries
    assert "labelSelector" not in query


async def test_cancelled_watch_closes_its_connection(bench: Bench) -> None:
    closed = asyncio.Event()

    async def play(stream: Stream) -> None:
        await stream.send(bookmark(20))
        while stream.request.transport is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        closed.set()

    bench.server.plays = [play]
    await bench.until(lambda: len(bench.server.log) == 2)
    await asyncio.wait_for(closed.wait(), 10)
