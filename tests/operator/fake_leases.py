"""In-memory Lease, and candidates' connections to it with delays, losses and outages."""

import asyncio
import copy
import random
from collections.abc import Callable

from ddp_operator.cluster.base import ClusterError, ConflictError, Manifest

Delay = Callable[[], float]


def never() -> float:
    return 1e6


class LeaseServer:
    """API server with one Lease."""

    def __init__(self) -> None:
        self.lease: Manifest | None = None
        self._version = 0
        self.writers: list[str] = []
        """Holder of the Lease after each write, empty for a release."""

    @property
    def holder(self) -> str:
        return str(self.lease["spec"]["holderIdentity"]) if self.lease else ""

    def put(self, lease: Manifest, *, create: bool = False) -> Manifest:
        known = self.lease["metadata"]["resourceVersion"] if self.lease else None
        if create and known is not None:
            raise ConflictError("leases already exists", status=409)
        if not create and known is None:
            raise ClusterError("leases not found", status=404)
        if not create and lease["metadata"]["resourceVersion"] != known:
            raise ConflictError("the object has been modified", status=409)
        self._version += 1
        self.lease = copy.deepcopy(lease)
        self.lease["metadata"]["resourceVersion"] = str(self._version)
        self.writers.append(self.holder)
        return copy.deepcopy(self.lease)

    def give_to(self, holder: str) -> None:
        """Transfer the Lease to another holder."""
        assert self.lease is not None
        spec = {**self.lease["spec"], "holderIdentity": holder}
        self.put({**self.lease, "spec": spec})


class Connection:
    """Connection of one candidate to the server. Implements `Leases`."""

    def __init__(self, server: LeaseServer) -> None:
        self.server = server
        self.request_delay: Delay = lambda: 0.0
        """Seconds until a request takes effect."""
        self.response_delay: Delay = lambda: 0.0
        """Seconds from the effect of a request until its response arrives."""
        self.down = False
        self.requests: list[str] = []

    async def get_lease(self, namespace: str, name: str) -> Manifest | None:
        assert (namespace, name) == ("ddp-system", "ddp-trainer-operator")
        return await self._call("get", lambda: copy.deepcopy(self.server.lease))

    async def create_lease(self, lease: Manifest) -> Manifest:
        found = await self._call("create", lambda: self.server.put(lease, create=True))
        assert found is not None
        return found

    async def update_lease(self, lease: Manifest) -> Manifest:
        found = await self._call("update", lambda: self.server.put(lease))
        assert found is not None
        return found

    async def _call(self, verb: str, effect: Callable[[], Manifest | None]) -> Manifest | None:
        self.requests.append(verb)
        if self.down:
            raise ClusterError("connection refused")
        request_delay, response_delay = self.request_delay(), self.response_delay()
        # A request that was sent takes effect even if the caller no longer waits for the response.
        answer: asyncio.Future[Manifest | None] = asyncio.get_running_loop().create_future()

        def arrive() -> None:
            try:
                outcome = effect()
            except ClusterError as error:
                if not answer.done():
                    answer.set_exception(error)
                    answer.exception()
            else:
                if not answer.done():
                    answer.set_result(outcome)

        asyncio.get_running_loop().call_later(request_delay, arrive)
        try:
            return await asyncio.shield(answer)
        finally:
            await asyncio.sleep(response_delay)


def flaky(seed: int) -> tuple[Delay, Delay]:
    """Return delays of a bad network: mostly short, sometimes longer than any deadline."""
    rng = random.Random(seed)  # noqa: S311

    def delay() -> float:
        return rng.choice([0.01, 0.05, 0.2, 1.0, 3.0]) if rng.random() < 0.9 else 20.0

    return delay, delay
