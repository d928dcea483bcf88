"""The operator's process: wires everything, runs until told to stop."""

import asyncio
import logging
import os
import signal
import sys
import uuid
from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import Any

import kopf

from ddp_operator.builders.pod import Defaults
from ddp_operator.cluster.base import Key, NotLeadingError
from ddp_operator.cluster.kube import KubeCluster
from ddp_operator.handlers import build_registry, build_settings
from ddp_operator.runtime import logs
from ddp_operator.runtime.cache import Cache
from ddp_operator.runtime.controller import Controller
from ddp_operator.runtime.health import serve_health
from ddp_operator.runtime.leader import Elector, Timing
from ddp_operator.runtime.queue import WorkQueue
from ddp_operator.runtime.settings import Settings, SettingsError
from ddp_operator.runtime.vigil import Vigil
from ddp_operator.runtime.workers import Heart, first_sync, resync_for_ever, work

_log = logging.getLogger("ddp_operator")


class WatchError(Exception):
    """Watching has ended for good: the resource is gone, or the credentials are refused."""


async def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, or until a part of the process ends unasked.

    Raises:
        NotLeadingError: Another process may lead by now.
        WatchError: Everything must begin anew.
    """
    stop = asyncio.Event()
    _listen(stop)
    if settings.lease_namespace is not None:
        await _run_elected(settings, settings.lease_namespace, stop)
    else:
        await _run_alone(settings, stop)


def _listen(stop: asyncio.Event) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)


async def _run_alone(settings: Settings, stop: asyncio.Event) -> None:
    heart = Heart()
    cluster = await KubeCluster.connect(heard=heart.heard)
    health = await serve_health(heart, settings.health_port)
    try:
        await _until(stop, [_operate(settings, cluster, heart, stop)])
    finally:
        await health.cleanup()
        await cluster.close()


async def _run_elected(settings: Settings, namespace: str, stop: asyncio.Event) -> None:
    heart = Heart()
    # Connections of its own: a renewal must not wait behind the work.
    leases = await KubeCluster.connect(in_flight=2)
    identity = f"{settings.identity}_{uuid.uuid4().hex[:8]}"
    timing = Timing(settings.lease_seconds, settings.renew_seconds, settings.retry_seconds)
    elector = Elector(leases, namespace, settings.lease_name, identity, timing)
    cluster = await KubeCluster.connect(may_write=elector.check, heard=heart.heard)
    health = await serve_health(heart, settings.health_port, elector.standing_by)
    try:
        if await elector.acquire(stop):
            try:
                await _until(stop, [elector.hold(), _operate(settings, cluster, heart, stop)])
            finally:
                await elector.release()
    finally:
        await health.cleanup()
        await cluster.close()
        await leases.close()


async def _operate(
    settings: Settings, cluster: KubeCluster, heart: Heart, stop: asyncio.Event
) -> None:
    """All that one process alone may do, for ever."""
    cache = Cache()
    queue: WorkQueue[Key] = WorkQueue()
    defaults = Defaults(settings.trainer_image, settings.image_pull_policy)
    vigil = Vigil(cluster, queue.add)
    controller = Controller(cluster, cache, defaults, lambda: datetime.now(UTC), vigil=vigil)

    def take() -> Coroutine[Any, Any, Any]:
        return cluster.snapshot(settings.namespace)

    await first_sync(take, cache, queue, heart)
    _log.info("ready: %d jobs known, trainer image %s", len(cache.keys()), defaults.image)
    parts: list[Coroutine[Any, Any, None]] = [
        work(queue, controller, heart) for _ in range(settings.workers)
    ]
    parts.append(resync_for_ever(take, cache, queue, settings.resync_seconds))
    parts.append(_watch(settings, cache, queue, stop))
    try:
        await _until(asyncio.Event(), parts)
    finally:
        await vigil.close()


async def _watch(
    settings: Settings, cache: Cache, queue: WorkQueue[Key], stop: asyncio.Event
) -> None:
    """Feed the queue from watches.

    Raises:
        WatchError: Kopf cannot go on.
    """
    watching = await kopf.spawn_tasks(
        registry=build_registry(cache, queue),
        settings=build_settings(),
        standalone=True,
        clusterwide=settings.namespace is None,
        namespaces=[settings.namespace] if settings.namespace else [],
    )
    _listen(stop)  # kopf has put its own handlers in the place of ours, and would end alone.
    try:
        done, _ = await asyncio.wait(watching, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
    cause = next((e for t in done if not t.cancelled() and (e := t.exception())), None)
    raise WatchError(f"jobs and pods cannot be watched: {cause!r}") from cause


async def _until(stop: asyncio.Event, parts: list[Coroutine[Any, Any, None]]) -> None:
    """Run all parts until told to stop; a part that ends by itself ends the others.

    Raises:
        NotLeadingError: A part found that this process does not lead.
        WatchError: Nothing can be watched any more.
        RuntimeError: A part ended unasked.
    """
    tasks = [asyncio.ensure_future(part) for part in parts]
    asked = asyncio.ensure_future(stop.wait())
    try:
        done, _ = await asyncio.wait([asked, *tasks], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in [asked, *tasks]:
            task.cancel()
        await asyncio.gather(asked, *tasks, return_exceptions=True)
    causes = [t.exception() for t in done if not t.cancelled()]
    for cause in causes:
        if isinstance(cause, NotLeadingError | WatchError):
            raise cause
    if asked not in done:
        cause = next((c for c in causes if c is not None), None)
        raise RuntimeError("a part of the operator ended unasked") from cause


def main() -> None:
    """Entry point of `ddp-operator`."""
    try:
        settings = Settings.from_environment()
    except SettingsError as error:
        sys.exit(f"ddp-operator: {error}")
    logs.configure(settings.log_level, settings.log_format)
    try:
        asyncio.run(_run_anew(settings))
    except NotLeadingError as error:
        _log.critical("this process ends: %s", error)
        sys.exit(1)


async def _run_anew(settings: Settings) -> None:
    """Run; begin anew in the place of this process when nothing can be watched any more.

    A watcher of kopf's that fails leaves others behind, which do not end when they are cancelled:
    only a new program is free of them. It waits, not ready, until everything can be listed again.
    """
    try:
        await run(settings)
    except WatchError as error:
        _log.warning("beginning anew: %s", error)
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606


if __name__ == "__main__":
    main()
