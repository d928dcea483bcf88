"""Leader election by a Lease: at most one replica may write at any time.

The semantics are those of client-go. A candidate takes the Lease when the Lease is free. It also
takes the Lease if nobody has changed it for the lease duration that the Lease states. A leader
stops when it could not renew the Lease for a shorter time, which begins before its last successful
request was sent. Each process uses its own monotonic clock, so clocks of two machines are never
compared. Every update names the version that it replaces. So the old leader stops before another
replica can become the leader.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NoReturn

from ddp_operator.cluster.base import ClusterError, ConflictError, Leases, Manifest, NotLeadingError

_log = logging.getLogger(__name__)

_RELEASE_SECONDS = 5.0


@dataclass(frozen=True)
class Timing:
    """Durations of a leader election, in seconds."""

    lease: float = 15
    """Time after the last observed renewal before another candidate may take the Lease.

    The Lease holds it in whole seconds.
    """
    renew: float = 10
    """Time without a renewal after which the leader stops."""
    retry: float = 2
    """Time between two attempts to acquire or renew the Lease."""


class Elector:
    """One candidate of the election. Call `acquire`, `hold` and `release` in this order."""

    def __init__(
        self, leases: Leases, namespace: str, name: str, identity: str, timing: Timing
    ) -> None:
        """Create a candidate. No other process may ever have used the same `identity`."""
        self._leases, self._timing = leases, timing
        self._namespace, self._name, self._identity = namespace, name, identity
        self._metadata: Manifest | None = None
        """Metadata of the Lease as last observed, or None if there was no Lease."""
        self._record: Manifest = {}
        """Spec of the Lease as last observed.

        It stays when the Lease is deleted, because the holder may not know that yet.
        """
        self._changed_at = 0.0
        """Loop time of the last observed change of the Lease."""
        self._was_read = False
        """Whether the Lease has been read from the API server at least once."""
        self._up_to_date = False
        """Whether the Lease may be updated without a new read."""
        self._leads_until: float | None = None
        self._problem = ""

    @property
    def holder(self) -> str:
        """Return the last observed holder of the Lease, or an empty string if it was free."""
        return str(self._record.get("holderIdentity") or "")

    @property
    def leads(self) -> bool:
        """Return whether this process is the leader now."""
        return self._leads_until is not None and _now() < self._leads_until

    def check(self) -> None:
        """Check that this process is the leader. Call this method before every write.

        Raises:
            NotLeadingError: This process is not the leader.
        """
        if self.leads:
            return
        if self.holder != self._identity:
            raise NotLeadingError(f"the Lease is held by {self.holder or 'no process'}")
        reason = f": {self._problem}" if self._problem else ""
        raise NotLeadingError(f"the Lease was not renewed for {self._timing.renew:g} s{reason}")

    def standby_readiness(self) -> tuple[bool, str] | None:
        """Return whether this candidate could lead, and a message; None for the leader."""
        if self._leads_until is not None:
            return None
        if not self._was_read:
            return False, f"the Lease has not been read yet: {self._problem or 'no answer so far'}"
        return True, self._standby_message()

    async def acquire(self, stop: asyncio.Event) -> bool:
        """Wait until this process is the leader. Return False if `stop` is set first."""
        logged = ""
        while not stop.is_set():
            await self._run_step(self._acquire_once)
            if self.leads:
                _log.info("leading as %s", self._identity)
                return True
            state = self._problem or self._standby_message()
            if state != logged:
                _log.log(logging.WARNING if self._problem else logging.INFO, "%s", state)
                logged = state
            jitter = random.uniform(1.0, 1.2)  # noqa: S311 (jitter)
            await wait_for(stop, self._timing.retry * jitter)
        return False

    async def hold(self) -> NoReturn:
        """Renew the Lease forever.

        Raises:
            NotLeadingError: No renewal succeeded in time, or another process holds the Lease.
        """
        while True:
            await asyncio.sleep(min(self._timing.retry, self._seconds_left()))
            self.check()
            await self._run_step(self._renew_once)
            if self._problem and self.leads:
                _log.warning("the Lease was not renewed, trying again: %s", self._problem)

    async def release(self) -> None:
        """Free the Lease for the next leader. All tasks that write must have ended."""
        if not self.leads:
            return
        try:
            async with asyncio.timeout(min(_RELEASE_SECONDS, self._seconds_left())):
                if not self._up_to_date:
                    await self._read()
                if self.holder == self._identity:
                    self._leads_until = None
                    await self._write({"holderIdentity": "", "leaseDurationSeconds": 1})
        except (ClusterError, TimeoutError) as error:
            _log.warning("the Lease was not released and will expire: %r", error)
        else:
            _log.info("the Lease is released")

    async def _run_step(self, step: Callable[[], Awaitable[None]]) -> None:
        """Run one step with a timeout. Store its error, if any, in `_problem`."""
        seconds = min(self._timing.renew / 2, self._seconds_left())
        self._problem = ""
        try:
            async with asyncio.timeout(seconds):
                await step()
        except ConflictError:
            self._problem = "another process changed the Lease"
        except ClusterError as error:
            self._problem = str(error)
        except TimeoutError:
            self._problem = f"no answer within {seconds:.1f} s"

    async def _acquire_once(self) -> None:
        await self._read()
        if not self.holder or self.holder == self._identity or self._has_expired():
            await self._claim()

    async def _renew_once(self) -> None:
        if not self._up_to_date:
            # The last update was refused, or its response was lost and it may have taken effect.
            await self._read()
            if self.holder != self._identity:
                self._leads_until = None
                self.check()
        await self._claim()

    def _has_expired(self) -> bool:
        seconds = float(self._record.get("leaseDurationSeconds") or self._timing.lease)
        return _now() >= self._changed_at + seconds

    async def _claim(self) -> None:
        sent = _now()
        is_holder = self.holder == self._identity
        transitions = int(self._record.get("leaseTransitions") or 0)
        await self._write(
            {
                "holderIdentity": self._identity,
                "leaseDurationSeconds": max(1, round(self._timing.lease)),
                "acquireTime": self._record.get("acquireTime") if is_holder else _wall_time(),
                "leaseTransitions": transitions
                if is_holder or not self._record
                else transitions + 1,
            }
        )
        self._leads_until = sent + self._timing.renew

    async def _read(self) -> None:
        self._observe(await self._leases.get_lease(self._namespace, self._name))

    async def _write(self, changes: Manifest) -> None:
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": self._metadata or {"namespace": self._namespace, "name": self._name},
            "spec": {**self._record, "renewTime": _wall_time(), **changes},
        }
        self._up_to_date = False
        if self._metadata is None:
            self._observe(await self._leases.create_lease(lease))
        else:
            self._observe(await self._leases.update_lease(lease))

    def _observe(self, lease: Manifest | None) -> None:
        self._was_read = self._up_to_date = True
        metadata = lease["metadata"] if lease is not None else None
        if _version(metadata) != _version(self._metadata):
            self._changed_at = _now()
        self._metadata = metadata
        if lease is not None:
            self._record = lease.get("spec") or {}

    def _standby_message(self) -> str:
        return f"standing by: {self.holder or 'no process'} holds the Lease"

    def _seconds_left(self) -> float:
        return float("inf") if self._leads_until is None else max(0.0, self._leads_until - _now())


async def wait_for(stop: asyncio.Event, seconds: float) -> None:
    """Wait for a number of seconds, or until `stop` is set."""
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        pass


def _version(metadata: Manifest | None) -> Any:
    return metadata["resourceVersion"] if metadata else None


def _now() -> float:
    return asyncio.get_running_loop().time()


def _wall_time() -> str:
    """Return the time of day for readers of the Lease. The election does not use it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
