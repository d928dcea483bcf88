"""The operator process: create all components, and run them until a signal stops the process."""

import asyncio
import functools
import logging
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import kopf
from prometheus_client import CollectorRegistry

from ddp_operator.builders.defaults import Defaults
from ddp_operator.builders.gangs.versions import Gangs
from ddp_operator.builders.kinds import kinds_in_use
from ddp_operator.cluster.base import Key, NotLeadingError, Request, namespace_of
from ddp_operator.cluster.kube.cluster import KubeCluster
from ddp_operator.cluster.kube.connection import ApiConnection
from ddp_operator.cluster.kube.leases import KubeLeases
from ddp_operator.cluster.webhook import KeyFileError, Webhook, read_keys
from ddp_operator.handlers import NoMemories, build_registry, build_settings
from ddp_operator.limits import WAITING_SECONDS
from ddp_operator.runtime import logs
from ddp_operator.runtime.agent_watcher import AgentWatcher
from ddp_operator.runtime.cache import Cache
from ddp_operator.runtime.child_events import ChildEvents
from ddp_operator.runtime.controller import Controller
from ddp_operator.runtime.finished_jobs import FinishedJobs
from ddp_operator.runtime.gang_apis import GangApis
from ddp_operator.runtime.health import serve_health
from ddp_operator.runtime.job_metrics import JobCollector
from ddp_operator.runtime.kubernetes_nodes import KubernetesNodes
from ddp_operator.runtime.leader import Elector, Timing
from ddp_operator.runtime.memory import collect_garbage_less_often
from ddp_operator.runtime.metrics import OperatorMetrics
from ddp_operator.runtime.notifier import Notifier
from ddp_operator.runtime.pod_lists import PodLists
from ddp_operator.runtime.queue import WorkQueue
from ddp_operator.runtime.settings import ASSIGNED, Settings, SettingsError
from ddp_operator.runtime.snapshots import Snapshots
from ddp_operator.runtime.workers import (
    WorkerActivity,
    all_workers,
    first_sync,
    resync_periodically,
)
from ddp_wire.processes import raise_open_file_limit

_log = logging.getLogger("ddp_operator")


class WatchError(Exception):
    """Error that ends all watches: a missing resource, refused credentials or lower versions."""


async def run(settings: Settings) -> None:
    """Run the operator until SIGTERM or SIGINT.

    Raises:
        NotLeadingError: Another process may have become the leader.
        WatchError: The watches ended, and only a new process can start them again.
        RuntimeError: A task of the operator ended unexpectedly.
    """
    stop = asyncio.Event()
    _handle_signals(stop)
    metrics = OperatorMetrics(CollectorRegistry())
    if settings.lease_namespace is not None:
        await _run_with_election(settings, settings.lease_namespace, metrics, stop)
    else:
        await _run_without_election(settings, metrics, stop)


def _handle_signals(stop: asyncio.Event) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)


async def _run_without_election(
    settings: Settings, metrics: OperatorMetrics, stop: asyncio.Event
) -> None:
    activity = WorkerActivity()
    observe = _observer(activity, metrics)
    cluster = await KubeCluster.connect(on_request=observe)
    health = await serve_health(activity, metrics.registry, settings.health_port)
    try:
        await _run_until(stop, [_reconcile_jobs(settings, cluster, activity, metrics, stop)])
    finally:
        await health.cleanup()
        await cluster.close()


def _observer(activity: WorkerActivity, metrics: OperatorMetrics) -> Callable[[Request], None]:
    """Return a function that records each request to the API server in the metrics."""

    def observe(request: Request) -> None:
        activity.record_request(request)
        metrics.record_request(request)

    return observe


async def _run_with_election(
    settings: Settings, namespace: str, metrics: OperatorMetrics, stop: asyncio.Event
) -> None:
    activity = WorkerActivity()
    # Separate connections, so that a renewal never waits for other requests.
    lease_api = await ApiConnection.connect(in_flight=2, on_request=metrics.record_request)
    identity = f"{settings.identity}_{uuid.uuid4().hex[:8]}"
    timing = Timing(settings.lease_seconds, settings.renew_seconds, settings.retry_seconds)
    leases = KubeLeases(lease_api)
    elector = Elector(leases, namespace, settings.lease_name, identity, timing)
    observe = _observer(activity, metrics)
    cluster = await KubeCluster.connect(may_write=elector.check, on_request=observe)
    readiness = elector.standby_readiness
    health = await serve_health(activity, metrics.registry, settings.health_port, readiness)
    try:
        if await elector.acquire(stop):
            try:
                reconciling = _reconcile_jobs(settings, cluster, activity, metrics, stop)
                await _run_until(stop, [elector.hold(), reconciling])
            finally:
                await elector.release()
    finally:
        await health.cleanup()
        await cluster.close()
        await lease_api.close()


def _lead(
    metrics: OperatorMetrics, cache: Cache, queue: WorkQueue[Key], watcher: AgentWatcher
) -> None:
    """Register the metrics that only the leader has."""
    metrics.leader.set(1)
    metrics.registry.register(JobCollector(cache.jobs))
    metrics.observe_queue(queue.__len__, queue.oldest_seconds)
    metrics.observe_agents(watcher.count)


async def _reconcile_jobs(
    settings: Settings,
    cluster: KubeCluster,
    activity: WorkerActivity,
    metrics: OperatorMetrics,
    stop: asyncio.Event,
) -> None:
    """Run all tasks that only the leader may run, forever."""
    cache = Cache()
    queue: WorkQueue[Key] = WorkQueue(group_of=namespace_of)
    gangs = GangApis(cluster.served_versions, _gangs_of(settings))
    defaults = replace(_defaults_of(settings), gangs=await gangs.discover())
    wake = functools.partial(queue.add, urgent=True)
    cache.directories.on_release = wake
    refresh_pods = PodLists(cluster, cache).refresh
    watcher = AgentWatcher(cluster, wake, settings.status_writes_per_second, refresh_pods)
    nodes = KubernetesNodes(cache.places, wake, settings.gpu_product_label)
    clock = functools.partial(datetime.now, UTC)
    notifier = _notifier_of(settings, clock, metrics)
    controller = Controller(
        cluster,
        cache,
        defaults,
        clock,
        agents=watcher,
        nodes=nodes,
        monotonic=time.monotonic,
        is_listed=activity.is_listed,
        others_wait=lambda: queue.oldest_seconds() > WAITING_SECONDS,
        on_status=metrics.record_status,
        observe=notifier.observe if notifier is not None else lambda _: None,
        finished_jobs=FinishedJobs(cluster) if settings.finished_jobs else None,
    )
    _lead(metrics, cache, queue, watcher)
    used = kinds_in_use(defaults)
    kinds, watched = [k.name for k in used], [k.name for k in used if k.watched]
    take_one = functools.partial(cluster.snapshot, kinds=kinds)
    take_snapshot = Snapshots(take_one, settings.namespaces, activity).take
    await first_sync(take_snapshot, cache, queue, activity)
    _log.info("ready: %d jobs known, trainer image %s", len(cache.keys()), defaults.image)
    coroutines: list[Coroutine[Any, Any, None]] = all_workers(
        settings.workers, queue, controller, activity, metrics.record_reconcile
    )
    every, wanted = settings.resync_seconds, activity.resync_wanted
    coroutines += [
        resync_periodically(take_snapshot, cache, queue, every, wanted),
        metrics.measure_lag(),
        _watch_jobs(settings, cache, queue, stop),
        cluster.watch_children(watched, settings.namespaces, ChildEvents(cache, queue, activity)),
    ]
    if notifier is not None:
        coroutines.append(notifier.run())
    if settings.watch_nodes:
        coroutines.append(cluster.watch_nodes(nodes))
    if settings.gang_types:
        coroutines.append(_watch_gang_apis(gangs, activity, settings.resync_seconds))
    try:
        await _run_until(asyncio.Event(), coroutines)
    finally:
        await watcher.close()


def _defaults_of(settings: Settings) -> Defaults:
    """Return the operator's defaults for spec fields that a job leaves out."""
    return Defaults(
        settings.trainer_image,
        settings.image_pull_policy,
        settings.log_format,
        user=None if settings.worker_user == ASSIGNED else int(settings.worker_user),
        shared_memory=settings.shared_memory,
        agent_clients=settings.agent_clients,
        pod_template=settings.pod_template,
        annotations=settings.pod_template_annotations,
        gpu_product_label=settings.gpu_product_label,
        host_ports=settings.port_range,
        checkpoint_claims=settings.checkpoint_claims,
    )


def _notifier_of(
    settings: Settings, clock: Callable[[], datetime], metrics: OperatorMetrics
) -> Notifier | None:
    """Return the notifier, or None if the settings name no receiver."""
    if settings.webhook_url is None or settings.webhook_key_file is None:
        return None
    webhook = Webhook(settings.webhook_url, settings.webhook_key_file)
    return Notifier(webhook, clock, metrics.record_notification)


def _gangs_of(settings: Settings) -> Gangs:
    """Return the gang schedulers that the operator's settings name."""
    return Gangs(
        settings.gang_types,
        settings.gang_default,
        settings.gang_queue,
        settings.coscheduling_scheduler,
    )


async def _watch_gang_apis(gangs: GangApis, activity: WorkerActivity, every: float) -> None:
    """Watch for a change of the kinds of group objects that the API server serves.

    Raises:
        WatchError: The kinds have changed. The operator must restart to list and watch the new
            ones.
    """
    change = await gangs.wait_for_change(activity.missing_kind, every)
    raise WatchError(change)


async def _watch_jobs(
    settings: Settings, cache: Cache, queue: WorkQueue[Key], stop: asyncio.Event
) -> None:
    """Add keys to the queue from kopf's watches of jobs.

    Raises:
        WatchError: Kopf stopped, or the API server was restored from a backup. Watches of a
            restored API server receive nothing until it reaches its former versions again.
    """
    watching = await kopf.spawn_tasks(
        registry=build_registry(cache, queue),
        settings=build_settings(),
        memories=NoMemories(),
        standalone=True,
        clusterwide=not settings.namespaces,
        namespaces=settings.namespaces,
    )
    _handle_signals(stop)  # kopf replaced our handlers by its own, which would stop only kopf.
    restored = asyncio.ensure_future(cache.restored.wait())
    try:
        done, _ = await asyncio.wait([*watching, restored], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in [*watching, restored]:
            task.cancel()
        await asyncio.gather(*watching, restored, return_exceptions=True)
    if restored in done:
        raise WatchError(
            "the API server has older versions than before, as after a restore of etcd"
        )
    cause = next((e for t in done if not t.cancelled() and (e := t.exception())), None)
    raise WatchError(f"jobs cannot be watched: {cause!r}") from cause


async def _run_until(stop: asyncio.Event, coroutines: list[Coroutine[Any, Any, None]]) -> None:
    """Run all coroutines until `stop` is set. If one ends earlier, cancel the rest.

    Raises:
        NotLeadingError: A task found that this process is not the leader.
        WatchError: The watches ended.
        RuntimeError: A task ended unexpectedly.
    """
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    stopped = asyncio.ensure_future(stop.wait())
    try:
        done, _ = await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in [stopped, *tasks]:
            task.cancel()
        await asyncio.gather(stopped, *tasks, return_exceptions=True)
    causes = [t.exception() for t in done if not t.cancelled()]
    for cause in causes:
        if isinstance(cause, NotLeadingError | WatchError):
            raise cause
    if stopped not in done:
        cause = next((c for c in causes if c is not None), None)
        raise RuntimeError("a task of the operator ended unexpectedly") from cause


def main() -> None:
    """Run the `ddp-operator` command."""
    try:
        settings = Settings.from_environment()
        if settings.webhook_key_file is not None:
            read_keys(settings.webhook_key_file)
    except (SettingsError, KeyFileError) as error:
        sys.exit(f"ddp-operator: {error}")
    logs.configure(settings.log_level, settings.log_format)
    collect_garbage_less_often()
    raise_open_file_limit()
    try:
        asyncio.run(_run_and_reexec(settings))
    except NotLeadingError as error:
        _log.critical("this process ends: %s", error)
        sys.exit(1)


async def _run_and_reexec(settings: Settings) -> None:
    """Run the operator, and re-execute the program when the watches have ended.

    After a failure kopf leaves watcher tasks behind that ignore cancellation, and only a new
    program is free of them. The new program is not ready until it can list jobs and pods again.
    """
    try:
        await run(settings)
    except WatchError as error:
        _log.warning("re-executing the operator: %s", error)
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606


if __name__ == "__main__":
    main()
