"""Run a whole agent with a small script in place of torchrun, and send it orders."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ddp_agent.agent import Agent
from ddp_agent.clock import Clock, Ticker
from ddp_agent.config import AgentConfig
from ddp_agent.members import Members
from ddp_agent.network.barrier_client import StartBarrier
from ddp_agent.network.barriers import Barriers
from ddp_agent.orders import AttemptOrders
from ddp_agent.processes.attempt_process import AttemptStarter
from ddp_agent.processes.launch import Launch
from ddp_agent.status.xids import XidCounts
from ddp_agent.status_writer import StatusWriter
from ddp_wire.contract import ATTEMPT_FILE, Env
from ddp_wire.messages import AgentPhase, AgentStatus
from tests.agent.support import DEADLINE_SECONDS, config

PREAMBLE = """
import json, os, signal, subprocess, sys, time
attempt = int(os.environ["DDP_ATTEMPT"])

def heartbeat(phase, **more):
    fields = {"attempt": attempt, "rank": 0, "localRank": 0, "phase": phase, "at": time.time()}
    path = os.path.join(os.environ["DDP_BEATS_DIR"], "0.json")
    with open(path + ".tmp", "w") as file:
        json.dump(fields | more, file)
    os.replace(path + ".tmp", path)

def fail(**failure):
    with open(os.environ["DDP_FAILURE_FILE"], "w") as file:
        json.dump({"attempt": attempt, "at": time.time()} | failure, file)
    sys.exit(1)

def on_sigterm(work):
    signal.signal(signal.SIGTERM, lambda *_: work())

def wait_for_file(path):
    while not os.path.exists(path):
        time.sleep(0.005)

def run_forever():
    while True:
        time.sleep(0.01)
"""
"""Functions that the scripts in place of torchrun may call."""


def stub_torchrun(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Make attempts run a script in place of torchrun, with torchrun's arguments."""

    def command(launch: Launch) -> list[str]:
        return [sys.executable, "-S", "-c", PREAMBLE + script, *launch.arguments]

    monkeypatch.setattr(Launch, "command", property(command))


Condition = Callable[[AgentStatus], bool]


def phase(name: str, attempt: int = 1) -> Condition:
    """Return a condition that holds while the agent is in a phase of an attempt."""
    return lambda status: (status.phase, status.attempt) == (AgentPhase(name), attempt)


class OneBarrier(Barriers):
    """Barriers that return the same side of the start barrier for each attempt."""

    def __init__(self, made: AgentConfig, barrier: StartBarrier) -> None:
        self._config, self._barrier = made, barrier

    def side_for(self, members: Members) -> StartBarrier | None:
        del members
        return self._barrier

    def leave(self) -> None:
        self._barrier.close()


@dataclass
class AgentHarness:
    """One node: its agent, its annotation file, its clock, and all statuses of the agent."""

    home: Path
    env: dict[str, str | None] = field(default_factory=dict)
    barrier: StartBarrier | None = None
    """The node's start barrier. The default is that of its environment."""
    tick_seconds: float = 0.0
    """Duration of a tick by the agent's clock, in seconds. 0 for real time."""
    xids: XidCounts = field(default_factory=dict)
    """XID errors of the node's GPUs until now."""
    statuses: list[AgentStatus] = field(default_factory=list)
    """Newest status of each phase, in order."""
    accepted: list[bool] = field(default_factory=list)
    """Answers of the agent to direct orders."""

    def __post_init__(self) -> None:
        one: dict[str, str | None] = {Env.NODES: "1", Env.PROCS_PER_NODE: "1"}
        self.monotonic = 0.0
        self._began = time.monotonic()
        self._steps: list[tuple[Condition, Callable[[], None]]] = []
        made = config(self.home, **(one | self.env))
        ticker = Ticker(Clock(time.time, self._time, self._tick))
        self.orders = AttemptOrders(made.job_uid, made.pod_info_dir)
        self.writer = StatusWriter(made, ticker.clock)
        self.agent = Agent(
            made,
            self.home / "scratch",
            ticker=ticker,
            orders=self.orders,
            writer=self.writer,
            starter=AttemptStarter(made, ticker, xids=lambda: self.xids),
            barriers=Barriers(made) if self.barrier is None else OneBarrier(made, self.barrier),
        )

    @property
    def status(self) -> AgentStatus:
        """Current agent status."""
        return self.writer.status

    def write_order(self, value: str) -> None:
        """Change the annotation file as the kubelet does."""
        draft = self.home / "draft"
        draft.write_text(value)
        draft.replace(self.home / ATTEMPT_FILE)

    def stop(self, how: str) -> None:
        """Stop the run, either by the annotation file ("stop") or by SIGTERM ("terminate")."""
        if how == "terminate":
            self.orders.stop()
        else:
            self.write_order("stop")

    def when(self, condition: Condition, action: Callable[[], None]) -> None:
        """Run an action once the agent's status meets a condition. Actions run in call order."""
        self._steps.append((condition, action))

    def touch(self, name: str) -> None:
        """Create a file for which a script waits."""
        (self.home / name).touch()

    def run(self) -> int:
        """Run the agent to its end. Return its exit code."""
        code = self.agent.run()
        self._record()
        assert not self._steps, f"a condition was never met; last status: {self.statuses[-1]}"
        return code

    def phases(self) -> list[str]:
        """Return all phases of the agent, each as `attempt:phase`."""
        return [f"{s.attempt}:{s.phase.value}" for s in self.statuses]

    def _time(self) -> float:
        return self.monotonic if self.tick_seconds else time.monotonic()

    def _tick(self, _: float) -> None:
        assert time.monotonic() < self._began + DEADLINE_SECONDS, f"hangs: {self.phases()}"
        self.monotonic += self.tick_seconds
        self._record()
        if self._steps and self._steps[0][0](self.status):
            self._steps.pop(0)[1]()
        time.sleep(0.003)

    def _record(self) -> None:
        now = self.status
        if not self.statuses or (self.statuses[-1].attempt, self.statuses[-1].phase) != (
            now.attempt,
            now.phase,
        ):
            self.statuses.append(now)
        else:
            self.statuses[-1] = now
