"""Client of the agents of worker pods.

A failed request is not an error, because the pod's own state shows what happened.
"""

import asyncio
import contextlib
import functools
import logging
import resource
from collections.abc import Sequence

from pydantic import ValidationError

from ddp_operator.cluster.agent_http import (
    Address,
    AgentConnections,
    NoResponseError,
    Response,
)
from ddp_operator.cluster.base import AgentAnswer
from ddp_operator.limits import (
    FEWEST_CONNECTIONS,
    INSPECTION_CONNECTIONS,
    INSPECTION_SECONDS,
    MOST_CONNECTIONS,
    MOST_INSPECTIONS,
    MOST_ORDERS,
    OTHER_FILES,
)
from ddp_wire.contract import AGENT_PORT
from ddp_wire.messages import AgentPhase, AgentStatus, AttemptOrder, Heartbeat, InspectionRequest
from ddp_wire.signatures import (
    NONCE_HEADER,
    SIGNATURE_HEADER,
    is_genuine,
    random_text,
    sign_answer,
    sign_request,
)

_log = logging.getLogger(__name__)

_CONNECT_SECONDS = 1.5
_ORDER_SECONDS = 1.5
_OK = 200
_FINAL_PHASES = {AgentPhase.SUCCEEDED, AgentPhase.FAILED, AgentPhase.PREEMPTED}


class Agents:
    """Client of the agents of worker pods, which it finds by pod address. Close it after use."""

    def __init__(self, port: int = AGENT_PORT, most: int | None = None) -> None:
        """Create a client. The event loop must be running.

        Args:
            port: Port of all agents for which a call names no port.
            most: Maximum number of open connections. The default follows from the limit of open
                files.
        """
        most = most or connections_for(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        self._requests = AgentConnections(most)
        self._order_requests = AgentConnections(MOST_ORDERS)
        self._inspection_requests = AgentConnections(INSPECTION_CONNECTIONS)
        self._port, self._most = port, most
        self._warned = False
        self._orders: dict[Address, asyncio.Task[bool]] = {}
        """Orders that are being sent, by address."""
        self._inspecting: set[asyncio.Task[None]] = set()
        """Questions of users that are being sent."""
        self._reading = asyncio.Lock()

    async def close(self) -> None:
        """Cancel all that is being sent, and close all connections."""
        sending = [*self._orders.values(), *self._inspecting]
        for one in sending:
            one.cancel()
        await asyncio.gather(*sending, return_exceptions=True)
        self._requests.close()
        self._order_requests.close()
        self._inspection_requests.close()

    async def watch_status(
        self, host: str, secret: str, revision: int, seconds: float, port: int | None = None
    ) -> AgentAnswer:
        """Return the agent's answer once its status changes, or after the given seconds.

        If too many connections are open, first wait until another request ends.
        """
        self._warn_if_full()
        target = f"/status?revision={revision}&wait={seconds:.0f}"
        address = host, port or self._port
        nonce, request = _signed(address, secret, "GET", target)
        try:
            response = await self._requests.send(
                address,
                request,
                connect_seconds=_CONNECT_SECONDS,
                seconds=seconds + _CONNECT_SECONDS,
            )
        except NoResponseError as error:
            # The agent starts or stops, its node is lost, or a policy is in the way.
            return AgentAnswer(None, error.size)
        return AgentAnswer(await self._read(response, secret, nonce), response.size)

    async def _read(self, response: Response, secret: str, nonce: str) -> AgentStatus | None:
        """Parse an answer. Return the status after one turn of the event loop.

        A long answer takes milliseconds to parse, and many agents may answer at once. The turn lets
        other tasks run between two answers.
        """
        async with self._reading:
            await asyncio.sleep(0)
            if response.code != _OK or not _is_genuine(response, secret, nonce):
                return None
            return _parse(response.body)

    def send_order(
        self, host: str, secret: str, order: AttemptOrder, port: int | None = None
    ) -> None:
        """Begin to send an attempt order. Cancel an older order to the same agent."""
        address = host, port or self._port
        older = self._orders.pop(address, None)
        if older is not None:
            older.cancel()
        if len(self._orders) >= MOST_ORDERS:
            return
        sending = asyncio.ensure_future(self.order_attempt(host, secret, order, port))
        self._orders[address] = sending
        sending.add_done_callback(functools.partial(self._forget_order, address))

    def _forget_order(self, address: Address, sent: asyncio.Task[bool]) -> None:
        if self._orders.get(address) is sent:
            del self._orders[address]

    async def order_attempt(
        self, host: str, secret: str, order: AttemptOrder, port: int | None = None
    ) -> bool:
        """Send an attempt order. Return whether the agent accepted it."""
        address, body = (host, port or self._port), order.to_json()
        return await self._post(self._order_requests, address, secret, "/attempt", body)

    def send_inspection(
        self, agents: Sequence[tuple[str, int, str]], request: InspectionRequest
    ) -> None:
        """Begin to send a user's question to agents, a few at a time.

        The question is dropped if too many are being sent already.

        Args:
            agents: Host, port and secret of each agent.
            request: The question.
        """
        if len(self._inspecting) >= MOST_INSPECTIONS:
            return
        sending = asyncio.ensure_future(self._inspect(agents, request.to_json()))
        self._inspecting.add(sending)
        sending.add_done_callback(self._inspecting.discard)

    async def _inspect(self, agents: Sequence[tuple[str, int, str]], body: str) -> None:
        remaining = iter(agents)

        async def send_in_turn() -> None:
            for host, port, secret in remaining:
                address, connections = (host, port), self._inspection_requests
                await self._post(connections, address, secret, "/inspection", body)

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(INSPECTION_SECONDS):
                await asyncio.gather(*(send_in_turn() for _ in range(INSPECTION_CONNECTIONS)))

    async def _post(
        self,
        connections: AgentConnections,
        address: Address,
        secret: str,
        target: str,
        body: str,
    ) -> bool:
        """Send a signed document. Return whether the agent accepted it."""
        _, request = _signed(address, secret, "POST", target, body.encode())
        try:
            response = await connections.send(
                address, request, connect_seconds=_CONNECT_SECONDS, seconds=_ORDER_SECONDS
            )
        except NoResponseError:
            return False
        return response.code == _OK

    def _warn_if_full(self) -> None:
        if self._requests.is_full and not self._warned:
            self._warned = True
            _log.warning(
                "all %d connections to agents are open, so further agents take turns: the limit of"
                " open files (RLIMIT_NOFILE) permits no more",
                self._most,
            )


def _signed(
    address: Address, secret: str, method: str, target: str, body: bytes = b""
) -> tuple[str, bytes]:
    """Return a new nonce and a signed request, or an unsigned one for a pod without secret."""
    nonce, (host, port) = random_text(), address
    place = f"[{host}]" if ":" in host else host
    lines = [f"{method} {target} HTTP/1.1", f"Host: {place}:{port}"]
    if secret:
        signature = sign_request(secret, nonce, method, target, body)
        lines += [f"{NONCE_HEADER}: {nonce}", f"{SIGNATURE_HEADER}: {signature}"]
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return nonce, "\r\n".join([*lines, "", ""]).encode() + body


def connections_for(open_files: int) -> int:
    """Return the number of agent connections that a limit of open files permits."""
    if open_files == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return min(MOST_CONNECTIONS, max(FEWEST_CONNECTIONS, open_files - OTHER_FILES - MOST_ORDERS))


def _is_genuine(response: Response, secret: str, nonce: str) -> bool:
    """Return whether an answer to this nonce is signed with the pod's secret."""
    if not secret:
        return True
    expected = sign_answer(secret, nonce, response.code, response.body)
    return is_genuine(response.headers.get(SIGNATURE_HEADER.lower()), expected)


def _parse(body: bytes) -> AgentStatus | None:
    """Return the status with only the fields that decisions use, or None if it is invalid.

    The statuses of all agents stay in memory, so a hostile agent must not choose their size.
    """
    try:
        status = AgentStatus.model_validate_json(body)
    except ValidationError:
        return None
    return status.model_copy(update={"command": [], "ranks": _used_ranks(status)})


def _used_ranks(status: AgentStatus) -> list[Heartbeat]:
    """Return rank 0's heartbeat, or the most advanced rank's if the attempt has ended.

    The most advanced rank shows the reached step if rank 0's newest heartbeat is older.
    """
    first = [one for one in status.ranks if one.rank == 0][:1]
    if first or status.phase not in _FINAL_PHASES or not status.ranks:
        return first
    ahead = max(status.ranks, key=lambda one: one.step)
    unused = {"progress": None, "checkpoint": None, "training_times": None}
    return [ahead.model_copy(update=unused)]
