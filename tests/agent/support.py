"""Builders for the agent's tests."""

import contextlib
import ctypes
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ddp_agent.config import AgentConfig
from ddp_agent.word import Word
from ddp_wire.contract import AgentStatus, AttemptOrder, Beat, Env, RankPhase
from ddp_wire.processes import adopt_orphans, descendants
from tests.operator.support import UID, word

DEADLINE_SECONDS = 20.0
"""After which a condition that has not come about fails a test."""


def environment(home: Path, **changes: str | None) -> dict[str, str]:
    """A worker container's environment; `None` takes a variable away."""
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


def config(home: Path, **changes: str | None) -> AgentConfig:
    return AgentConfig.from_environment(environment(home, **changes))


def beat(**fields: Any) -> Beat:
    given = {"attempt": 1, "rank": 0, "local_rank": 0, "phase": RankPhase.TRAINING, "at": 1.0}
    return Beat(**(given | fields))


def wait_until(condition: Callable[[], bool], what: str, seconds: float = DEADLINE_SECONDS) -> None:
    """Return once a condition holds; fail when it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"in {seconds:.0f} s not: {what}"
        time.sleep(0.005)


_PR_SET_CHILD_SUBREAPER = 36


@contextlib.contextmanager
def orphanage() -> Iterator[None]:
    """This process adopts orphans as PID 1 does, is an ordinary one afterwards, and keeps none."""
    before = set(descendants(os.getpid()))  # Other tests' servers, as multiprocessing's.
    adopt_orphans()
    yield
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    assert set(descendants(os.getpid())) <= before, "a process is left behind"


class Told:
    """An agent that says what it is told to."""

    def __init__(self) -> None:
        self.word = Word(word())
        self.lives = True
        self.orders: list[AttemptOrder] = []
        self.listeners = 0
        """How often it has been asked for news."""

    def status(self) -> AgentStatus:
        return self.word.now()

    def news(self, revision: int, seconds: float) -> AgentStatus:
        self.listeners += 1
        return self.word.news(revision, seconds)

    def alive(self) -> bool:
        return self.lives

    def order(self, order: AttemptOrder) -> bool:
        self.orders.append(order)
        return order.job_uid == UID
