"""Kopf handlers: an event updates the cache and adds a key, without other effects."""

import asyncio
import copy
import itertools
from collections.abc import Iterable
from typing import Any, cast

import kopf
import pytest

from ddp_operator import app
from ddp_operator.app import WatchError
from ddp_operator.cluster.base import Key, Manifest
from ddp_operator.handlers import NoMemories, build_registry, build_settings
from ddp_operator.runtime.cache import Cache
from ddp_operator.runtime.queue import WorkQueue
from ddp_operator.runtime.settings import Settings
from tests.operator.support import job_manifest

KEY = ("team-a", "digits")


class Bench:
    def __init__(self) -> None:
        self.cache, self.queue = Cache(), WorkQueue[Key]()
        self.registry = build_registry(self.cache, self.queue)

    async def event(self, kind: str | None, item: Manifest) -> None:
        """Call the handler of an event of a job, as kopf does."""
        handlers: list[Any] = list(self.registry._watching.get_all_handlers())
        (handler,) = handlers
        event = {"type": kind, "object": copy.deepcopy(item)}
        await handler.fn(event=event, name="x", logger=None)
        self.handled: Any = event["object"]


@pytest.mark.parametrize("kind", ["ADDED", "MODIFIED", None], ids=["new", "changed", "first list"])
async def test_new_or_changed_job_is_cached_and_queued(kind: str | None) -> None:
    bench = Bench()
    await bench.event(kind, job_manifest())
    assert bench.cache.job(KEY) == job_manifest()
    assert await bench.queue.get() == KEY


async def test_deleted_job_is_dropped_and_queued() -> None:
    bench = Bench()
    bench.cache.put_job(job_manifest())
    await bench.event("DELETED", job_manifest())
    assert bench.cache.job(KEY) is None
    assert await bench.queue.get() == KEY


async def test_handled_event_keeps_no_spec_or_status_or_managed_fields() -> None:
    """kopf keeps a handled event until the next full garbage collection."""
    bench = Bench()
    large = job_manifest()
    large["metadata"]["managedFields"] = [{"fieldsV1": {}}]
    await bench.event("MODIFIED", large)
    assert bench.handled.keys() & {"spec", "status"} == set()
    assert "managedFields" not in bench.handled["metadata"]


def test_kopf_only_watches_jobs() -> None:
    """Without finalizers, daemons, timers, indexes and webhooks kopf never writes to an object."""
    registry = Bench().registry
    watching: list[Any] = list(registry._watching.get_all_handlers())
    assert [handler.selector.any_name for handler in watching] == ["ddpjobs"]
    for other in (registry._changing, registry._spawning, registry._indexing, registry._webhooks):
        assert list(other.get_all_handlers()) == []


def test_kopf_posts_no_events() -> None:
    settings = build_settings()
    assert settings.posting.enabled is False
    assert settings.peering.standalone is True


def test_watch_backoffs_are_endless_and_short() -> None:
    backoffs = build_settings().networking.error_backoffs
    assert isinstance(backoffs, Iterable)
    for _ in range(2):  # Each request starts with the first backoff.
        seconds = list(itertools.islice(backoffs, 100))
        assert (seconds[0], max(seconds), len(seconds)) == (1.0, 5.0, 100)


@pytest.mark.parametrize(
    ("host", "server"),
    [("10.0.0.1", "https://10.0.0.1:443"), ("fd00::1", "https://[fd00::1]:443")],
)
def test_watches_in_a_pod_use_the_address_from_its_environment(
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


def test_kopf_copies_no_object() -> None:
    persistence = build_settings().persistence
    body: Any = kopf.Body({"metadata": {"name": "digits"}})
    essence = persistence.diffbase_storage.build(body=body)
    assert essence == {}
    assert persistence.progress_storage.clear(essence=essence) is essence
    assert persistence.diffbase_storage.fetch(body=body) is None


async def test_kopf_stores_no_memory_of_an_object() -> None:
    memories, body = NoMemories(), cast("Any", job_manifest())
    first = await memories.recall(body, noticed_by_listing=True, memobase=kopf.Memo())
    assert first is not await memories.recall(body)
    assert list(memories.iter_all_memories()) == []
    await memories.forget(body)  # A watch tells of the deletion of an object that is not known.


async def test_operator_replaces_kopfs_store_of_memories(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    async def spawn_tasks(**kwargs: Any) -> list[Any]:
        given.update(kwargs)
        return [asyncio.ensure_future(asyncio.sleep(0))]

    monkeypatch.setattr(kopf, "spawn_tasks", spawn_tasks)
    monkeypatch.setattr(app, "_handle_signals", lambda _: None)
    settings = Settings(trainer_image="trainer:1", leader_election=False)
    with pytest.raises(WatchError):
        await app._watch_jobs(settings, Cache(), WorkQueue[Key](), asyncio.Event())
    assert isinstance(given["memories"], NoMemories)
