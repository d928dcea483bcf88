"""Lists of thousands of objects, read in pages."""

import threading
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from kubernetes.aio import client

from ddp_operator.cluster.agents import Agents
from ddp_operator.cluster.base import ClusterError, Manifest
from ddp_operator.cluster.kube import lists, object_lists
from ddp_operator.cluster.kube.cluster import KubeCluster
from ddp_operator.cluster.kube.connection import ApiConnection
from ddp_operator.cluster.kube.lists import Decode, list_decoder
from ddp_operator.limits import PAGE
from tests.operator.fake_api import FakeApi, refusal

LABELS = {"job": "digits"}
PODS: list[Manifest] = [
    {"metadata": {"name": f"p{n}", "namespace": "a", "uid": f"u{n}", "resourceVersion": "5"}}
    for n in range(2 * PAGE + 1)
]


class PagedApi(FakeApi):
    """API server that answers lists of pods in pages, as the real one does."""

    def __init__(self) -> None:
        super().__init__()
        self.fault = self._page
        self.limits: list[str | None] = []
        self.expired_after = len(PODS)
        """Number of pods after which the list is too old to be continued."""

    def _page(self, request: web.Request) -> web.StreamResponse | None:
        if not request.path.endswith("/pods"):
            return None
        limit, start = request.query.get("limit"), int(request.query.get("continue", "0"))
        self.limits.append(limit)
        if start > self.expired_after:
            return refusal(410, "the provided continue parameter is too old")
        end = start + int(limit or len(PODS))
        more = {"continue": str(end)} if end < len(PODS) else {}
        metadata = {"resourceVersion": "9", **more}
        return web.json_response({"items": PODS[start:end], "metadata": metadata})


@pytest.fixture
async def api() -> AsyncIterator[PagedApi]:
    api = PagedApi()
    await api.start()
    yield api
    await api.stop()


@pytest.fixture
async def cluster(api: PagedApi) -> AsyncIterator[KubeCluster]:
    configuration = client.Configuration(host=api.address)
    cluster = KubeCluster(ApiConnection(client.ApiClient(configuration)), Agents())
    yield cluster
    await cluster.close()


async def test_relist_reads_all_pods_in_pages(api: PagedApi, cluster: KubeCluster) -> None:
    found = (await cluster.snapshot(None)).children["Pod"]
    assert [pod["metadata"]["name"] for pod in found.items] == [f"p{n}" for n in range(len(PODS))]
    assert found.version == 9
    assert api.limits == [str(PAGE)] * 3


@pytest.mark.parametrize(("expected", "requests"), [(4, 1), (PAGE + 1, 3)])
async def test_pods_of_a_small_job_are_read_in_one_list_and_of_a_large_job_in_pages(
    api: PagedApi, cluster: KubeCluster, expected: int, requests: int
) -> None:
    found = await cluster.list_pods("a", LABELS, expected)
    assert (len(found.items), found.version) == (len(PODS), 9)
    assert len(api.limits) == requests


async def test_list_that_expires_between_two_pages_raises_an_error(
    api: PagedApi, cluster: KubeCluster
) -> None:
    api.expired_after = PAGE
    with pytest.raises(ClusterError, match="too old") as caught:
        await cluster.snapshot(None)
    assert caught.value.status == 410


async def test_relist_is_decoded_outside_the_event_loop(
    cluster: KubeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set()

    def decoder(kind: str) -> Decode:
        def decode(text: bytes) -> Manifest:
            threads.add(threading.current_thread())
            return list_decoder(kind)(text)

        return decode

    monkeypatch.setattr(lists, "LARGE", 1)
    monkeypatch.setattr(object_lists, "list_decoder", decoder)
    assert len((await cluster.snapshot(None)).children["Pod"].items) == len(PODS)
    assert len(threads) == 1
    assert threading.main_thread() not in threads
