"""kopf's part: an event keeps the cache and becomes a key, and nothing else happens."""

import itertools
from collections.abc import Iterable
from typing import Any

import kopf
import pytest

from ddp_operator.cluster.base import Key, Manifest
from ddp_operator.handlers import build_registry, build_settings
from ddp_operator.runtime.cache import Cache
from ddp_operator.runtime.queue import WorkQueue
from tests.operator.support import active_job, job_manifest, pod_manifest

KEY = ("team-a", "digits")


class Bench:
    def __init__(self) -> None:
        self.cache, self.queue = Cache(), WorkQueue[Key]()
        self.registry = build_registry(self.cache, self.queue)

    async def event(self, plural: str, kind: str | None, item: Manifest) -> None:
        """Let the watch bring an event, as kopf calls the handler."""
        handlers: list[Any] = list(self.registry._watching.get_all_handlers())
        (handler,) = [h for h in handlers if h.selector.any_name == plural]
        await handler.fn(event={"type": kind, "object": item}, name="x", logger=None)


@pytest.mark.parametrize("kind", ["ADDED", "MODIFIED", None], ids=["new", "changed", "first list"])
async def test_a_job_that_comes_or_changes_is_known_and_looked_at(kind: str | None) -> None:
    bench = Bench()
    await bench.event("ddpjobs", kind, job_manifest())
    assert bench.cache.job(KEY) == job_manifest()
    assert await bench.queue.get() == KEY


async def test_a_job_that_goes_is_forgotten_and_looked_at() -> None:
    bench = Bench()
    bench.cache.put_job(job_manifest())
    await bench.event("ddpjobs", "DELETED", job_manifest())
    assert bench.cache.job(KEY) is None
    assert await bench.queue.get() == KEY


@pytest.mark.parametrize(("plural", "kind"), [("pods", "Pod"), ("services", "Service")])
async def test_a_childs_event_is_a_look_at_its_job(plural: str, kind: str) -> None:
    bench = Bench()
    child = pod_manifest(active_job())
    await bench.event(plural, "MODIFIED", child)
    assert bench.cache.children(kind, KEY) == [child]
    assert await bench.queue.get() == KEY
    bench.queue.done(KEY)
    await bench.event(plural, "DELETED", child)
    assert bench.cache.children(kind, KEY) == []
    assert len(bench.queue) == 1


async def test_a_strangers_pod_is_nothing_to_look_at() -> None:
    bench = Bench()
    stranger = pod_manifest(active_job())
    stranger["metadata"]["labels"] = {}
    await bench.event("pods", "MODIFIED", stranger)
    assert len(bench.queue) == 0


def test_kopf_watches_and_does_nothing_else() -> None:
    """No finalizers, daemons, timers, indexes, webhooks: nothing of kopf's lands on an object."""
    registry = Bench().registry
    watching: list[Any] = list(registry._watching.get_all_handlers())
    watched = {h.selector.any_name for h in watching}
    assert watched == {"ddpjobs", "pods", "services"}
    for other in (registry._changing, registry._spawning, registry._indexing, registry._webhooks):
        assert list(other.get_all_handlers()) == []


def test_kopf_watches_only_our_pods_and_posts_no_events_of_its_own() -> None:
    settings = build_settings()
    assert settings.posting.enabled is False
    assert settings.peering.standalone is True
    for plural in ("pods", "services"):
        selector = settings.watching.label_selectors[plural]
        assert selector == "app.kubernetes.io/managed-by=ddp-trainer"


def test_a_watch_is_tried_again_without_end_and_never_seldom() -> None:
    backoffs = build_settings().networking.error_backoffs
    assert isinstance(backoffs, Iterable)
    for _ in range(2):  # Each request begins with the first of them.
        seconds = list(itertools.islice(backoffs, 100))
        assert (seconds[0], max(seconds), len(seconds)) == (1.0, 5.0, 100)


@pytest.mark.parametrize(
    ("host", "server"),
    [("10.0.0.1", "https://10.0.0.1:443"), ("fd00::1", "https://[fd00::1]:443")],
)
def test_in_a_pod_watches_go_to_the_address_that_the_pod_was_given(
    host: str, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = kopf.ConnectionInfo(server="https://kubernetes.default.svc", token="t")  # noqa: S106
    monkeypatch.setattr(kopf, "login_with_service_account", lambda **_: account)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    handlers: list[Any] = list(Bench().registry._activities.get_all_handlers())
    (login,) = handlers
    found = login.fn()
    assert (found.server, found.token) == (server, "t")
