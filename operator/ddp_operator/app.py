"""The operator's process: wires everything, runs until told to stop."""

import asyncio
import contextlib
import logging
import random
import signal
import sys
from collections.abc import Coroutine
from datetime import UTC, datetime

import kopf

from ddp_operator.builders.pod import Defaults
from ddp_operator.cluster.base import ClusterError, Key
from ddp_operator.cluster.kube import KubeCluster
from ddp_operator.handlers import build_registry, build_settings
from ddp_operator.runtime.cache import Cache
from ddp_operator.runtime.controller import Controller
from ddp_operator.runtime.health import serve_health
from ddp_operator.runtime.queue import WorkQueue
from ddp_operator.runtime.settings import Settings, SettingsError
from ddp_operator.runtime.workers import Heart, resync, work

_log = logging.getLogger("ddp_operator")


async def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, or until a part of the process ends unasked."""
    cluster = await KubeCluster.connect()
    cache, heart = Cache(), Heart()
    queue: WorkQueue[Key] = WorkQueue()
    defaults = Defaults(settings.trainer_image, settings.image_pull_policy)
    controller = Controller(cluster, cache, defaults, lambda: datetime.now(UTC))
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    health = await serve_health(heart, settings.health_port)
    try:
        await _first_sync(settings, cluster, cache, queue, stop)
        if stop.is_set():
            return
        heart.synced = True
        _log.info("ready: %d jobs known, trainer image %s", len(cache.keys()), defaults.image)
        parts = [work(queue, controller, heart) for _ in range(settings.workers)]
        parts.append(_resync_for_ever(settings, cluster, cache, queue))
        parts.append(_watch(settings, cache, queue))
        await _until(stop, parts)
    finally:
        await health.cleanup()
        await cluster.close()


async def _watch(settings: Settings, cache: Cache, queue: WorkQueue[Key]) -> None:
    await kopf.operator(
        registry=build_registry(cache, queue),
        settings=build_settings(),
        standalone=True,
        clusterwide=settings.namespace is None,
        namespaces=[settings.namespace] if settings.namespace else [],
    )


async def _first_sync(
    settings: Settings,
    cluster: KubeCluster,
    cache: Cache,
    queue: WorkQueue[Key],
    stop: asyncio.Event,
) -> None:
    """Hold everything once before any decision is made."""
    while not stop.is_set():
        try:
            await resync(lambda: cluster.snapshot(settings.namespace), cache, queue)
        except ClusterError as error:
            _log.warning("not ready, jobs and pods cannot be listed: %s", error)
        else:
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), timeout=2.0)


async def _resync_for_ever(
    settings: Settings, cluster: KubeCluster, cache: Cache, queue: WorkQueue[Key]
) -> None:
    while True:
        spread = random.uniform(0.9, 1.1)  # noqa: S311 (jitter)
        await asyncio.sleep(settings.resync_seconds * spread)
        try:
            await resync(lambda: cluster.snapshot(settings.namespace), cache, queue)
        except ClusterError as error:
            _log.warning("resync failed, the next one follows: %s", error)


async def _until(stop: asyncio.Event, parts: list[Coroutine[None, None, None]]) -> None:
    """Run all parts until told to stop; a part that ends by itself ends the process.

    Raises:
        RuntimeError: A part ended unasked.
    """
    tasks = [asyncio.ensure_future(part) for part in parts]
    asked = asyncio.ensure_future(stop.wait())
    done, _ = await asyncio.wait([asked, *tasks], return_when=asyncio.FIRST_COMPLETED)
    for task in [asked, *tasks]:
        task.cancel()
    await asyncio.gather(asked, *tasks, return_exceptions=True)
    if asked not in done:
        cause = next((t.exception() for t in done if not t.cancelled()), None)
        raise RuntimeError("a part of the operator ended unasked") from cause


def main() -> None:
    """Entry point of `ddp-operator`."""
    try:
        settings = Settings.from_environment()
    except SettingsError as error:
        sys.exit(f"ddp-operator: {error}")
    logging.basicConfig(
        level=settings.log_level,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    logging.getLogger("kopf").setLevel(logging.WARNING)
    asyncio.run(run(settings))


if __name__ == "__main__":
    main()
