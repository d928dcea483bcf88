"""Leader election by a Lease: of all replicas at most one may write.

Semantics of client-go. A candidate takes the Lease when it is free, or when it has not seen the
record change for as long as the record's holder asked for. A leader stops being it when it has not
renewed the Lease within a shorter time, counted from before the request was sent. Each counts on
its own monotonic clock; times of two machines are never compared, and every update names the
version that it replaces. So a leader has stopped before anybody else can begin.
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
    """Seconds of an election."""

    lease: float = 15
    """Others wait this long after the last renewal that they saw. Sent as whole seconds."""
    renew: float = 10
    """The leader stops when it could not renew for this long."""
    retry: float = 2
    """Between two tries to acquire or to renew."""


class Elector:
    """One candidate. The order of calls is `acquire`, `hold`, `release`."""

    def __init__(
        self, leases: Leases, namespace: str, name: str, identity: str, timing: Timing
    ) -> None:
        """`identity` must be this process's alone: no other one may ever have borne it."""
        self._leases, self._timing = leases, timing
        self._namespace, self._name, self._identity = namespace, name, identity
        self._metadata: Manifest | None = None
        """Of the Lease as last seen; None when there was none."""
        self._record: Manifest = {}
        """Its spec. Stays when the Lease is deleted: its holder may not know of that yet."""
        self._seen_at = 0.0
        """When the Lease was last seen to differ from before."""
        self._known = False
        """Whether the API server has ever said who holds the Lease."""
        self._current = False
        """Whether nothing speaks against updating the Lease without reading it first."""
        self._leads_until: float | None = None
        self._problem = ""

    @property
    def holder(self) -> str:
        """Who held the Lease when it was last looked at; empty when it was free."""
        return str(self._record.get("holderIdentity") or "")

    @property
    def leads(self) -> bool:
        """Whether this process leads at this moment."""
        return self._leads_until is not None and _now() < self._leads_until

    def check(self) -> None:
        """To be called before anything is written.

        Raises:
            NotLeadingError: This process does not lead.
        """
        if self.leads:
            return
        if self.holder != self._identity:
            raise NotLeadingError(f"the Lease is held by {self.holder or 'nobody'}")
        why = f": {self._problem}" if self._problem else ""
        raise NotLeadingError(f"the Lease was not renewed for {self._timing.renew:g} s{why}")

    def standing_by(self) -> tuple[bool, str] | None:
        """Whether this candidate is ready to lead, and a sentence; None once it leads."""
        if self._leads_until is not None:
            return None
        if not self._known:
            return False, f"the Lease has not been read yet: {self._problem or 'no answer so far'}"
        return True, f"standing by: {self.holder or 'nobody'} leads"

    async def acquire(self, stop: asyncio.Event) -> bool:
        """Wait until this process leads. False when told to stop before that."""
        said = ""
        while not stop.is_set():
            await self._try(self._acquire_once)
            if self.leads:
                _log.info("leading as %s", self._identity)
                return True
            state = self._problem or f"standing by: {self.holder or 'nobody'} leads"
            if state != said:
                _log.log(logging.WARNING if self._problem else logging.INFO, "%s", state)
                said = state
            spread = random.uniform(1.0, 1.2)  # noqa: S311 (jitter)
            await wait_for(stop, self._timing.retry * spread)
        return False

    async def hold(self) -> NoReturn:
        """Renew the Lease for ever.

        Raises:
            NotLeadingError: It was not possible in time, or another process holds the Lease.
        """
        while True:
            await asyncio.sleep(min(self._timing.retry, self._seconds_left()))
            self.check()
            await self._try(self._renew_once)
            if self._problem and self.leads:
                _log.warning("the Lease was not renewed, trying again: %s", self._problem)

    async def release(self) -> None:
        """Let the next one take over at once. Only after everything that writes has ended."""
        if not self.leads:
            return
        try:
            async with asyncio.timeout(min(_RELEASE_SECONDS, self._seconds_left())):
                if not self._current:
                    await self._read()
                if self.holder == self._identity:
                    self._leads_until = None
                    await self._write({"holderIdentity": "", "leaseDurationSeconds": 1})
        except (ClusterError, TimeoutError) as error:
            _log.warning("the Lease was not released, and runs out by itself: %r", error)
        else:
            _log.info("the Lease is released")

    async def _try(self, step: Callable[[], Awaitable[None]]) -> None:
        """One step within its time. What went wrong stands in `_problem` afterwards."""
        seconds = min(self._timing.renew / 2, self._seconds_left())
        self._problem = ""
        try:
            async with asyncio.timeout(seconds):
                await step()
        except ConflictError:
            self._problem = "somebody else has changed the Lease"
        except ClusterError as error:
            self._problem = str(error)
        except TimeoutError:
            self._problem = f"no answer within {seconds:.1f} s"

    async def _acquire_once(self) -> None:
        await self._read()
        if not self.holder or self.holder == self._identity or self._has_run_out():
            await self._claim()

    async def _renew_once(self) -> None:
        if not self._current:
            # The last update was refused, or its answer was lost though it may have gone through.
            await self._read()
            if self.holder != self._identity:
                self._leads_until = None
                self.check()
        await self._claim()

    def _has_run_out(self) -> bool:
        seconds = float(self._record.get("leaseDurationSeconds") or self._timing.lease)
        return _now() >= self._seen_at + seconds

    async def _claim(self) -> None:
        sent = _now()
        mine = self.holder == self._identity
        transitions = int(self._record.get("leaseTransitions") or 0)
        await self._write(
            {
                "holderIdentity": self._identity,
                "leaseDurationSeconds": max(1, round(self._timing.lease)),
                "acquireTime": self._record.get("acquireTime") if mine else _wall_time(),
                "leaseTransitions": transitions if mine or not self._record else transitions + 1,
            }
        )
        self._leads_until = sent + self._timing.renew

    async def _read(self) -> None:
        self._take_in(await self._leases.get_lease(self._namespace, self._name))

    async def _write(self, changes: Manifest) -> None:
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": self._metadata or {"namespace": self._namespace, "name": self._name},
            "spec": {**self._record, "renewTime": _wall_time(), **changes},
        }
        self._current = False
        if self._metadata is None:
            self._take_in(await self._leases.create_lease(lease))
        else:
            self._take_in(await self._leases.update_lease(lease))

    def _take_in(self, lease: Manifest | None) -> None:
        self._known = self._current = True
        metadata = lease["metadata"] if lease is not None else None
        if _version(metadata) != _version(self._metadata):
            self._seen_at = _now()
        self._metadata = metadata
        if lease is not None:
            self._record = lease.get("spec") or {}

    def _seconds_left(self) -> float:
        return float("inf") if self._leads_until is None else max(0.0, self._leads_until - _now())


async def wait_for(stop: asyncio.Event, seconds: float) -> None:
    """Wait for a time, or until told to stop."""
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
    """For people and for other tools only."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
