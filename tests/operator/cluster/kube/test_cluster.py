"""API server client over real HTTP: every failed request raises a ClusterError."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from kubernetes.aio import client, config

from ddp_operator.cluster.agents import Agents
from ddp_operator.cluster.base import (
    ClusterError,
    ConflictError,
    Manifest,
    NotLeadingError,
    Request,
)
from ddp_operator.cluster.kube.cluster import KubeCluster
from ddp_operator.cluster.kube.connection import ApiConnection, use_proxy_of_environment
from ddp_operator.cluster.kube.leases import KubeLeases
from tests.operator.fake_api import FakeApi, refusal

NAME = ("ddp-system", "ddp-trainer-operator")
LEASE: Manifest = {
    "metadata": {"namespace": NAME[0], "name": NAME[1]},
    "spec": {"holderIdentity": "a"},
}


class Bench:
    def __init__(self, api: FakeApi) -> None:
        self.api, self.requests = api, list[Request]()
        self.leading = True
        configuration = client.Configuration(host=api.address)
        connection = ApiConnection(
            client.ApiClient(configuration),
            may_write=self._may_write,
            on_request=self.requests.append,
        )
        self.cluster = KubeCluster(connection, Agents())
        self.leases = KubeLeases(connection)

    def _may_write(self) -> None:
        if not self.leading:
            raise NotLeadingError("the Lease is held by b")


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    api = FakeApi()
    await api.start()
    bench = Bench(api)
    yield bench
    await bench.cluster.close()
    await api.stop()


@pytest.mark.parametrize(
    ("status", "header", "retry_after", "served"),
    [
        (429, "7", 7.0, True),
        (429, "", None, True),
        (429, "soon", None, True),
        (500, "", None, False),
        (503, "3", 3.0, False),
        (401, "", None, False),
        (403, "", None, True),
        (405, "", None, True),
    ],
)
async def test_refusal_keeps_its_status_and_message(
    bench: Bench, status: int, header: str, retry_after: float | None, served: bool
) -> None:
    headers = {"Retry-After": header} if header else {}
    bench.api.fault = lambda _: refusal(status, "not now", **headers)
    with pytest.raises(ClusterError, match="not now") as caught:
        await bench.cluster.snapshot(None)
    assert not isinstance(caught.value, ConflictError)
    assert (caught.value.status, caught.value.retry_after) == (status, retry_after)
    assert {one.served for one in bench.requests} == {served}


async def test_three_concurrent_refused_lists_raise_one_error(bench: Bench) -> None:
    async def late_jobs(request: web.Request) -> None:
        if "ddpjobs" in request.path:
            await asyncio.sleep(0.1)

    bench.api.before = late_jobs
    bench.api.fault = lambda request: refusal(403, f"no {request.path.rpartition('/')[2]}")
    with pytest.raises(ClusterError, match="no ddpjobs"):
        await bench.cluster.snapshot(None)


async def test_missing_crd_is_reported(bench: Bench) -> None:
    bench.api.fault = lambda _: web.Response(status=404, text="404 page not found")
    with pytest.raises(ClusterError, match=r"the CRD ddpjobs\.ddp-trainer\.dev is not installed"):
        await bench.cluster.snapshot(None)


async def test_token_is_read_again_after_a_401(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(client_configuration: client.Configuration) -> None:
        client_configuration.api_key["BearerToken"] = "bearer new"

    def only_the_new(request: web.Request) -> web.Response | None:
        return None if request.headers.get("Authorization") == "bearer new" else refusal(401, "no")

    monkeypatch.setattr(config, "load_incluster_config", load)
    bench.api.fault = only_the_new
    with pytest.raises(ClusterError, match="no"):
        await bench.cluster.get_job(("team-a", "digits"))
    assert await bench.cluster.get_job(("team-a", "digits")) is None


async def test_conflict_raises_a_conflict_error(bench: Bench) -> None:
    bench.api.fault = lambda _: refusal(409, "the object has been modified")
    with pytest.raises(ConflictError):
        await bench.leases.update_lease({**LEASE, "metadata": {**LEASE["metadata"], **version(1)}})


async def test_missing_response_fails_only_its_own_request(bench: Bench) -> None:
    def hang_up(request: web.Request) -> None:
        assert request.transport is not None
        request.transport.abort()

    bench.api.fault = hang_up
    with pytest.raises(ClusterError, match="did not answer") as caught:
        await bench.cluster.get_job(("team-a", "digits"))
    assert caught.value.status == 0
    bench.api.fault = lambda _: None
    assert await bench.cluster.get_job(("team-a", "digits")) is None
    assert [one.served for one in bench.requests[-2:]] == [False, True]


@pytest.mark.parametrize(("status", "message"), [(200, "is not JSON"), (502, "HTTP status 502")])
async def test_html_response_of_a_proxy_raises_an_error(
    bench: Bench, status: int, message: str
) -> None:
    bench.api.fault = lambda _: web.Response(status=status, text="<html>proxy</html>")
    with pytest.raises(ClusterError, match=message):
        await bench.cluster.snapshot(None)


async def test_lease_is_created_read_and_updated_at_its_version(bench: Bench) -> None:
    assert await bench.leases.get_lease(*NAME) is None
    created = await bench.leases.create_lease(LEASE)
    with pytest.raises(ConflictError):
        await bench.leases.create_lease(LEASE)
    newer = await bench.leases.update_lease(created)
    with pytest.raises(ConflictError):
        await bench.leases.update_lease(created)
    assert await bench.leases.get_lease(*NAME) == newer
    path = "/apis/coordination.k8s.io/v1/namespaces/ddp-system/leases"
    assert ("POST", path) in bench.api.requests
    assert ("PUT", f"{path}/ddp-trainer-operator") in bench.api.requests


async def test_lease_is_never_updated_without_a_version(bench: Bench) -> None:
    with pytest.raises(ValueError, match="unconditional"):
        await bench.leases.update_lease(LEASE)
    assert bench.api.requests == []


async def test_process_that_is_not_the_leader_reads_but_does_not_write(bench: Bench) -> None:
    bench.leading = False
    await bench.cluster.snapshot(None)
    requests = len(bench.api.requests)
    pod = {"kind": "Pod", "metadata": {"namespace": "team-a", "name": "p"}}
    job = {"metadata": {"namespace": "a", "name": "j", "uid": "u", "resourceVersion": "1"}}
    for write in (
        bench.cluster.create(pod),
        bench.cluster.delete_pod("team-a", "p", "uid", None),
        bench.cluster.annotate_pod("team-a", "p", "uid", {}),
        bench.cluster.delete_job(("team-a", "j"), "uid"),
        bench.cluster.write_status({**job, "spec": {}}, {}),
    ):
        with pytest.raises(NotLeadingError):
            await write
    assert len(bench.api.requests) == requests


@pytest.mark.parametrize("uid", ["old", "new"])
async def test_conflict_on_a_change_counts_as_deletion_only_if_the_uid_differs(
    bench: Bench, uid: str
) -> None:
    """A change at the same time is a conflict, too, and must not be taken for a deletion."""

    def answer(request: web.Request) -> web.Response:
        if request.method == "GET":
            return web.json_response({"metadata": {"uid": uid}})
        return refusal(409, "Operation cannot be fulfilled on pods")

    bench.api.fault = answer
    for change in (
        bench.cluster.delete_pod("team-a", "p", "old", None),
        bench.cluster.annotate_pod("team-a", "p", "old", {}),
        bench.cluster.end_pod("team-a", "p", "old"),
        bench.cluster.delete_job(("team-a", "j"), "old"),
    ):
        if uid == "new":
            assert await change is None
            continue
        with pytest.raises(ConflictError):
            await change


def version(number: int) -> Manifest:
    return {"resourceVersion": str(number)}


@pytest.mark.parametrize(
    ("variables", "of_kubeconfig", "expected"),
    [
        ({"https_proxy": "http://proxy:3128"}, None, "http://proxy:3128"),
        ({"http_proxy": "http://proxy:3128"}, None, None),
        ({"https_proxy": "http://proxy:3128", "no_proxy": "10.0.0.1"}, None, None),
        ({"https_proxy": "http://proxy:3128"}, "http://other:3128", "http://other:3128"),
        ({}, None, None),
    ],
)
def test_proxy_from_the_environment_is_used(
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    of_kubeconfig: str | None,
    expected: str | None,
) -> None:
    for name in ("https_proxy", "http_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    configuration = client.Configuration(host="https://10.0.0.1:6443", proxy=of_kubeconfig)
    use_proxy_of_environment(configuration)
    assert configuration.proxy == expected


async def test_requests_go_through_the_proxy(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later change of the environment has no effect, because requests do not read it again."""
    monkeypatch.setenv("http_proxy", bench.api.address)
    monkeypatch.delenv("no_proxy", raising=False)
    configuration = client.Configuration(host="http://server.invalid")
    use_proxy_of_environment(configuration)
    monkeypatch.setenv("http_proxy", "http://other.invalid")
    connection = ApiConnection(client.ApiClient(configuration))
    created = await KubeLeases(connection).create_lease(LEASE)
    await connection.close()
    assert created["metadata"]["name"] == NAME[1]


async def test_client_returns_the_served_versions_of_an_api_group(bench: Bench) -> None:
    group = "scheduling.k8s.io"
    versions = [{"groupVersion": f"{group}/{one}", "version": one} for one in ("v1", "v1alpha2")]

    def answer(request: web.Request) -> web.Response | None:
        found = {"kind": "APIGroup", "name": group, "versions": versions}
        return web.json_response(found) if request.path == f"/apis/{group}" else None

    bench.api.fault = answer
    assert await bench.cluster.served_versions(group) == (f"{group}/v1", f"{group}/v1alpha2")
    assert await bench.cluster.served_versions("scheduling.volcano.sh") == ()
    bench.api.fault = lambda _: refusal(503, "not now")
    with pytest.raises(ClusterError, match="not now"):
        await bench.cluster.served_versions(group)


async def test_deletion_of_a_child_spares_a_newer_object_of_the_same_name(bench: Bench) -> None:
    path = "/apis/scheduling.volcano.sh/v1beta1/namespaces/team-a/podgroups/digits-1"
    bodies: list[Manifest] = []

    async def read(request: web.Request) -> None:
        if request.method == "DELETE":
            bodies.append(await request.json())

    bench.api.before = read
    row = "PodGroup.v1beta1.scheduling.volcano.sh"
    await bench.cluster.delete_child(row, "team-a", "digits-1", "uid-1")  # It is gone already.
    assert ("DELETE", path) in bench.api.requests
    assert bodies == [{"preconditions": {"uid": "uid-1"}, "propagationPolicy": "Background"}]
    bench.api.fault = lambda _: refusal(403, "no right")
    with pytest.raises(ClusterError, match="no right"):
        await bench.cluster.delete_child(row, "team-a", "digits-1", "uid-1")


async def test_config_map_is_patched_or_else_created(bench: Bench) -> None:
    maps = "/api/v1/namespaces/team-a/configmaps"
    stored: list[Manifest] = []
    sent: list[tuple[str, str, Manifest]] = []

    async def read(request: web.Request) -> None:
        if request.method != "GET":
            sent.append((request.method, request.path, await request.json()))

    def answer(request: web.Request) -> web.Response | None:
        if request.method == "POST":
            stored.append(sent[-1][2])
        return web.json_response(stored[0]) if stored else None

    bench.api.before, bench.api.fault = read, answer
    assert await bench.cluster.read_config_map("team-a", "list") is None
    patch = {"data": {"a": "1", "b": None}}
    await bench.cluster.patch_config_map("team-a", "list", {"of": "us"}, patch)
    metadata = {"name": "list", "namespace": "team-a", "labels": {"of": "us"}}
    created = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"a": "1"}}
    assert sent == [("PATCH", f"{maps}/list", patch), ("POST", maps, created)]
    assert await bench.cluster.read_config_map("team-a", "list") == created
    await bench.cluster.patch_config_map("team-a", "list", {}, patch)
    assert sent[2:] == [("PATCH", f"{maps}/list", patch)]
    bench.leading = False
    with pytest.raises(NotLeadingError):
        await bench.cluster.patch_config_map("team-a", "list", {}, patch)
    bench.leading, bench.api.fault = True, lambda _: refusal(403, "no right")
    with pytest.raises(ClusterError, match="no right"):
        await bench.cluster.patch_config_map("team-a", "list", {}, patch)
