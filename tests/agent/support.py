"""Builders and fakes for the tests of the agent."""

import contextlib
import ctypes
import os
import resource
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from ddp_agent.config import AgentConfig
from ddp_agent.members import Members, members_of
from ddp_agent.network.server import AgentServer
from ddp_agent.orders import AttemptOrders
from ddp_agent.status.status_cell import AgentStatusCell
from ddp_wire.contract import Env
from ddp_wire.messages import AgentStatus, AttemptOrder, Heartbeat, InspectionRequest, RankPhase
from ddp_wire.orders import Order
from ddp_wire.processes import adopt_orphans, descendants
from tests.operator.support import UID, agent_status

DEADLINE_SECONDS = 20.0
"""Default time limit for a condition, in seconds."""


def environment(home: Path, **changes: str | None) -> dict[str, str]:
    """Return the environment of a worker container. `None` removes a variable."""
    given: dict[str, str | None] = {
        Env.JOB_UID: "uid-1",
        Env.NODE_INDEX: "0",
        Env.NODES: "2",
        Env.PROCS_PER_NODE: "2",
        Env.RENDEZVOUS_HOST: "digits-0.digits",
        Env.RENDEZVOUS_PORT_BASE: "29400",
        Env.POD_ADDRESS: "digits-0.digits",
        Env.POD_INFO_DIR: str(home),
        Env.TERMINATION_LOG: str(home / "termination.json"),
        Env.TASK: "my_package.flowers:build",
    }
    given |= changes
    return {str(name): value for name, value in given.items() if value is not None}


def members(made: AgentConfig, attempt: int = 1, nodes: Iterable[int] | None = None) -> Members:
    """Return the members of an attempt: all nodes of the job, or those that the order names."""
    return members_of(made, Order(attempt, None if nodes is None else frozenset(nodes)))


def config(home: Path, **changes: str | None) -> AgentConfig:
    return AgentConfig.from_environment(environment(home, **changes))


def heartbeat(**fields: Any) -> Heartbeat:
    given = {"attempt": 1, "rank": 0, "local_rank": 0, "phase": RankPhase.TRAINING, "at": 1.0}
    return Heartbeat(**(given | fields))


def wait_until(condition: Callable[[], bool], what: str, seconds: float = DEADLINE_SECONDS) -> None:
    """Return once a condition holds. Fail if it does not hold in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.005)


@contextlib.contextmanager
def few_files() -> Iterator[None]:
    """Prevent this process from opening further files until the end of the context."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


_PR_SET_CHILD_SUBREAPER = 36


@contextlib.contextmanager
def adopting_orphans() -> Iterator[None]:
    """Let this process adopt orphans as PID 1 does. Fail if a new descendant stays.

    A killed process may need a moment to free its memory.
    """
    before = set(descendants(os.getpid()))  # Other tests' servers, for example multiprocessing's.
    adopt_orphans()
    yield
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    wait_until(lambda: set(descendants(os.getpid())) <= before, "no process is left behind")


class FakeStatusCell(AgentStatusCell):
    """Status cell that a test can set. It counts the calls that wait for a change."""

    waits = 0
    """Number of calls of `wait_for_change`."""

    def set(self, status: AgentStatus) -> None:
        """Replace the status, its revision included."""
        self._status = status

    def wait_for_change(self, revision: int, seconds: float) -> AgentStatus:
        self.waits += 1
        return super().wait_for_change(revision, seconds)


class FakeOrders(AttemptOrders):
    """Attempt orders of an agent, with a record of all direct requests."""

    def __init__(self) -> None:
        super().__init__(UID, Path("/nowhere"))
        self.received: list[AttemptOrder] = []

    def accept(self, order: AttemptOrder) -> bool:
        self.received.append(order)
        return super().accept(order)


class FakeAgent:
    """Agent whose status and liveness a test sets."""

    def __init__(self, status: AgentStatus | None = None) -> None:
        self.cell = FakeStatusCell(status or agent_status())
        self.orders = FakeOrders()
        self.alive = True
        self.questions: list[InspectionRequest] = []

    def inspect(self, request: InspectionRequest) -> bool:
        """Take a question about the job of the tests."""
        self.questions.append(request)
        return request.job_uid == UID

    def is_alive(self) -> bool:
        """Return the liveness that the test has set."""
        return self.alive

    def server(self, port: int = 0, bind: str = "127.0.0.1", secret: str = "") -> AgentServer:
        """Return a server of this agent, not started yet."""
        return AgentServer(
            bind,
            port,
            self.cell,
            self.orders,
            self.is_alive,
            inspect=self.inspect,
            render_metrics=lambda: b"metrics 1.0\n",
            secret=secret,
        )
