"""Send notifications about jobs to the webhook of the installation, beside the reconciles."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import NoReturn, Protocol

from ddp_operator.api.job import DDPJob
from ddp_operator.cluster.webhook import DeliveryAnswer, DeliveryOutcome
from ddp_operator.limits import (
    NOTIFICATION_MEMORY,
    NOTIFICATION_QUEUE,
    NOTIFICATION_RETRIES,
    NOTIFICATION_SECONDS,
    NOTIFICATIONS_IN_FLIGHT,
)
from ddp_operator.reconcile.notifications import Notification, find_notifications

_log = logging.getLogger(__name__)

DELIVERED, FAILED, DROPPED = "delivered", "failed", "dropped"
"""Results of a notification, for the metric."""
_LONGEST = timedelta(seconds=NOTIFICATION_SECONDS)
RESULTS = (DELIVERED, FAILED, DROPPED)


class Sender(Protocol):
    """Sender of signed messages."""

    async def send(self, message_id: str, timestamp: int, body: bytes) -> DeliveryAnswer:
        """Send a message once."""

    async def close(self) -> None:
        """Close all connections."""


class Notifier:
    """Queue of notifications with a few senders. All methods must run on the event loop."""

    def __init__(
        self,
        sender: Sender,
        clock: Callable[[], datetime],
        record: Callable[[str], None] = lambda _: None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Create a notifier with an empty queue.

        Args:
            sender: Sender of signed messages.
            clock: Function that returns the current time.
            record: Function that is called with the result of each notification.
            sleep: Function that waits for seconds.
        """
        self._sender, self._clock, self._record, self._sleep = sender, clock, record, sleep
        self._queue: asyncio.Queue[Notification] = asyncio.Queue(NOTIFICATION_QUEUE)
        self._queued: OrderedDict[str, None] = OrderedDict()
        """Ids that this process has queued, oldest first."""

    def observe(self, job: DDPJob) -> None:
        """Queue what happened to a job recently and was not queued before. Never wait.

        Call it with each status that is read or written, so that neither a restart of the operator
        nor a lost answer of the API server hides the end of a job.
        """
        for notification in find_notifications(job, now=self._clock(), age=_LONGEST):
            if notification.id in self._queued:
                continue
            self._queued[notification.id] = None
            if len(self._queued) > NOTIFICATION_MEMORY:
                self._queued.popitem(last=False)
            try:
                self._queue.put_nowait(notification)
            except asyncio.QueueFull:
                self._record(DROPPED)
                _log.warning("a notification is dropped: %d are waiting", self._queue.qsize())

    async def run(self) -> None:
        """Send the queued notifications until the task is cancelled."""
        try:
            await asyncio.gather(*(self._send_all() for _ in range(NOTIFICATIONS_IN_FLIGHT)))
        finally:
            await self._sender.close()

    async def _send_all(self) -> NoReturn:
        while True:
            notification = await self._queue.get()
            delivered = await self._deliver(notification)
            self._record(DELIVERED if delivered else FAILED)

    async def _deliver(self, notification: Notification) -> bool:
        """Send a notification until it arrives, is refused or is too old. Return its success."""
        end = notification.time + _LONGEST
        failures = 0
        while True:
            now = self._clock()
            outcome, reason = await self._sender.send(
                notification.id, int(now.timestamp()), notification.body
            )
            if outcome is DeliveryOutcome.DELIVERED:
                return True
            failures += 1
            wait = NOTIFICATION_RETRIES.after(failures)
            if outcome is DeliveryOutcome.REFUSED or self._clock() + timedelta(seconds=wait) > end:
                _log.warning("the notification %s is given up: %s", notification.id, reason)
                return False
            await self._sleep(wait)
