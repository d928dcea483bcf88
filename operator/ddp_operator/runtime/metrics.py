"""Metrics of the operator process."""

import asyncio
from collections.abc import Callable
from importlib.metadata import version
from typing import NoReturn

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)

from ddp_operator.api.status import Cause, DDPJobStatus
from ddp_operator.cluster.base import Request
from ddp_operator.runtime.notifier import RESULTS
from ddp_wire.families import Family, Kind

_LATENCY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_RECOVERY_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 15.0, 30.0, 60.0, 120.0, 300.0)
_LAG_SECONDS = 0.1
"""Seconds between two measurements of the event loop's lag."""

BUILD = Family(
    "ddp_operator_build_info", Kind.GAUGE, "Version, as a label. Always 1.", ("version",)
)
LEADER = Family(
    "ddp_operator_leader", Kind.GAUGE, "1 if this replica acts on jobs, 0 if it stands by."
)
RECONCILES = Family(
    "ddp_operator_reconciles_total", Kind.COUNTER,
    "Reconciles of jobs by their result: success, conflict, refused or error.", ("result",),
)  # fmt: skip
RECONCILE_SECONDS = Family(
    "ddp_operator_reconcile_duration_seconds", Kind.HISTOGRAM, "Durations of reconciles.",
    (), _LATENCY_BUCKETS,
)  # fmt: skip
QUEUE_DEPTH = Family("ddp_operator_queue_depth", Kind.GAUGE, "Jobs that wait for a free worker.")
QUEUE_OLDEST = Family(
    "ddp_operator_queue_oldest_seconds", Kind.GAUGE,
    "Time for which the first job in the queue has waited.",
)  # fmt: skip
REQUESTS = Family(
    "ddp_operator_api_requests_total", Kind.COUNTER,
    "Requests to the API server, without watches. The code is 0 without a response.",
    ("verb", "resource", "code"),
)  # fmt: skip
REQUEST_SECONDS = Family(
    "ddp_operator_api_request_duration_seconds", Kind.HISTOGRAM,
    "Durations of requests to the API server.", ("verb",), _LATENCY_BUCKETS,
)  # fmt: skip
LAG = Family(
    "ddp_operator_event_loop_lag_seconds", Kind.HISTOGRAM,
    "Delays of the event loop, measured ten times per second.", (), _LATENCY_BUCKETS,
)  # fmt: skip
AGENTS = Family(
    "ddp_operator_agents", Kind.GAUGE,
    "Agents of active jobs by whether they answered the newest request: answering or silent.",
    ("state",),
)  # fmt: skip
ATTEMPTS = Family(
    "ddp_operator_attempts_ended_total", Kind.COUNTER,
    "Ended attempts of all jobs by cause. The cause is None if the run completed or exceeded a"
    " deadline.",
    ("cause",),
)  # fmt: skip
RECOVERY_SECONDS = Family(
    "ddp_operator_recovery_seconds", Kind.HISTOGRAM,
    "Seconds from a fault until each part of the recovery had ended on all nodes. The part"
    " firstStep ends the recovery.",
    ("part",), _RECOVERY_BUCKETS,
)  # fmt: skip
NOTIFICATIONS = Family(
    "ddp_operator_notifications_total", Kind.COUNTER,
    "Notifications by their result: delivered, failed (refused, or given up) or dropped because too"
    " many waited. Without a webhook always 0.",
    ("result",),
)  # fmt: skip

FAMILIES = (
    BUILD, LEADER, RECONCILES, RECONCILE_SECONDS, QUEUE_DEPTH, QUEUE_OLDEST, REQUESTS,
    REQUEST_SECONDS, LAG, AGENTS, ATTEMPTS, RECOVERY_SECONDS, NOTIFICATIONS,
)  # fmt: skip
"""Declarations of all metrics about the operator itself."""

_PARTS = {
    "noticed": "noticed_milliseconds",
    "decided": "decided_milliseconds",
    "ordered": "ordered_milliseconds",
    "tornDown": "torn_down_milliseconds",
    "forked": "forked_milliseconds",
    "rendezvous": "rendezvous_milliseconds",
    "processGroup": "process_group_milliseconds",
    "firstStep": "first_step_milliseconds",
}


class OperatorMetrics:
    """Metrics of one operator process. All methods must run on the event loop."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register the operator's metrics and the standard metrics of a process."""
        # Otherwise each counter and histogram has one more series, which no query reads.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        ProcessCollector(registry=registry)
        self.registry = registry
        _gauge(BUILD, registry).labels(version("ddp-trainer")).set(1)
        self.leader = _gauge(LEADER, registry)
        self._reconciles = _counter(RECONCILES, registry)
        self._reconcile_seconds = _histogram(RECONCILE_SECONDS, registry)
        self._requests = _counter(REQUESTS, registry)
        self._request_seconds = _histogram(REQUEST_SECONDS, registry)
        self._lag = _histogram(LAG, registry)
        self._attempts = _counter(ATTEMPTS, registry)
        self._recovery_seconds = _histogram(RECOVERY_SECONDS, registry)
        self._notifications = _counter(NOTIFICATIONS, registry)
        for result in RESULTS:
            self._notifications.labels(result)
        for result in ("success", "conflict", "refused", "error"):
            self._reconciles.labels(result)
        # A series that begins with its first event would hide that event from rate().
        for cause in (*Cause, "None"):
            self._attempts.labels(cause)
        for part in _PARTS:
            self._recovery_seconds.labels(part)

    def observe_queue(self, depth: Callable[[], int], oldest: Callable[[], float]) -> None:
        """Register a queue whose state is read at each scrape."""
        _gauge(QUEUE_DEPTH, self.registry).set_function(depth)
        _gauge(QUEUE_OLDEST, self.registry).set_function(oldest)

    def observe_agents(self, count: Callable[[bool], int]) -> None:
        """Register a function that counts silent and answering agents at each scrape."""
        agents = _gauge(AGENTS, self.registry)
        agents.labels("answering").set_function(lambda: count(False))
        agents.labels("silent").set_function(lambda: count(True))

    def record_request(self, request: Request) -> None:
        """Record one request to the API server."""
        self._requests.labels(request.verb, request.resource, request.status).inc()
        self._request_seconds.labels(request.verb).observe(request.seconds)

    def record_reconcile(self, result: str, seconds: float) -> None:
        """Record one reconcile of a job."""
        self._reconciles.labels(result).inc()
        self._reconcile_seconds.observe(seconds)

    def record_notification(self, result: str) -> None:
        """Record the result of one notification."""
        self._notifications.labels(result).inc()

    def record_status(self, before: DDPJobStatus, after: DDPJobStatus) -> None:
        """Record the changes in a written status: ended attempts, and the end of a recovery."""
        known = max((one.number for one in before.attempts), default=0)
        for ended in after.attempts:
            if ended.number > known:
                self._attempts.labels(ended.cause or "None").inc()
        recovery = after.last_recovery
        if recovery is None or not recovery.complete:
            return
        old = before.last_recovery
        if old is None or not old.complete or old.attempt != recovery.attempt:
            for part, field in _PARTS.items():
                if (milliseconds := getattr(recovery, field)) is not None:
                    self._recovery_seconds.labels(part).observe(milliseconds / 1000)

    async def measure_lag(self) -> NoReturn:
        """Measure the lag of the event loop in regular intervals, forever."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _LAG_SECONDS
            await asyncio.sleep(_LAG_SECONDS)
            self._lag.observe(max(0.0, loop.time() - due))


def _counter(family: Family, registry: CollectorRegistry) -> Counter:
    return Counter(family.name, family.help, family.labels, registry=registry)


def _gauge(family: Family, registry: CollectorRegistry) -> Gauge:
    return Gauge(family.name, family.help, family.labels, registry=registry)


def _histogram(family: Family, registry: CollectorRegistry) -> Histogram:
    return Histogram(
        family.name, family.help, family.labels, registry=registry, buckets=family.buckets
    )
