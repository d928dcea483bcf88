"""Runs a whole agent, with a small script in torchrun's place and a director who gives orders."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ddp_agent.agent import Agent, Clock
from ddp_agent.launcher import Launch
from ddp_wire.contract import ATTEMPT_FILE, AgentPhase, AgentStatus, Env
from tests.agent.support import DEADLINE_SECONDS, config

PREAMBLE = """
import json, os, signal, subprocess, sys, time
attempt = int(os.environ["DDP_ATTEMPT"])

def beat(phase, **more):
    said = {"attempt": attempt, "rank": 0, "localRank": 0, "phase": phase, "at": time.time()}
    path = os.path.join(os.environ["DDP_BEATS_DIR"], "0.json")
    with open(path + ".tmp", "w") as file:
        json.dump(said | more, file)
    os.replace(path + ".tmp", path)

def fall(**failure):
    with open(os.environ["DDP_FAILURE_FILE"], "w") as file:
        json.dump({"attempt": attempt, "at": time.time()} | failure, file)
    sys.exit(1)

def on_sigterm(work):
    signal.signal(signal.SIGTERM, lambda *_: work())

def until(path):
    while not os.path.exists(path):
        time.sleep(0.005)

def for_ever():
    while True:
        time.sleep(0.01)
"""


def stub_torchrun(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Let attempts run a script in torchrun's place, with torchrun's arguments."""

    def command(launch: Launch) -> list[str]:
        return [sys.executable, "-S", "-c", PREAMBLE + script, *launch.arguments]

    monkeypatch.setattr(Launch, "command", property(command))


Condition = Callable[[AgentStatus], bool]


def phase(name: str, attempt: int = 1) -> Condition:
    """When the agent is in a phase of an attempt."""
    return lambda status: (status.phase, status.attempt) == (AgentPhase(name), attempt)


@dataclass
class Bench:
    """One node: its agent, its pod's file, its clock, and what the agent has said over time."""

    home: Path
    env: dict[str, str | None] = field(default_factory=dict)
    pace: float = 0.0
    """Seconds that a tick takes by the agent's clock; 0 is real time."""
    said: list[AgentStatus] = field(default_factory=list)
    told: list[bool] = field(default_factory=list)
    """What the agent answered to orders that were posted to it."""

    def __post_init__(self) -> None:
        one: dict[str, str | None] = {Env.NODES: "1", Env.PROCS_PER_NODE: "1"}
        self._monotonic = 0.0
        self._began = time.monotonic()
        self._steps: list[tuple[Condition, Callable[[], None]]] = []
        clock = Clock(time.time, self._time, self._tick)
        self.agent = Agent(config(self.home, **(one | self.env)), self.home / "scratch", clock)

    def order(self, value: str) -> None:
        """Change the file that follows the pod's annotation, as the kubelet does."""
        draft = self.home / "draft"
        draft.write_text(value)
        draft.replace(self.home / ATTEMPT_FILE)

    def when(self, condition: Condition, action: Callable[[], None]) -> None:
        """Do something once, when the agent's status fits; in the order of these calls."""
        self._steps.append((condition, action))

    def touch(self, name: str) -> None:
        """Make a file that a script waits for."""
        (self.home / name).touch()

    def run(self) -> int:
        """Run the agent to its end."""
        code = self.agent.run()
        self._note()
        assert not self._steps, f"never came about; last: {self.said[-1]}"
        return code

    def story(self) -> list[str]:
        """The phases that the agent went through, as `attempt:phase`."""
        return [f"{s.attempt}:{s.phase.value}" for s in self.said]

    def _time(self) -> float:
        return self._monotonic if self.pace else time.monotonic()

    def _tick(self, _: float) -> None:
        assert time.monotonic() < self._began + DEADLINE_SECONDS, f"hangs: {self.story()}"
        self._monotonic += self.pace
        self._note()
        if self._steps and self._steps[0][0](self.agent.status()):
            self._steps.pop(0)[1]()
        time.sleep(0.003)

    def _note(self) -> None:
        now = self.agent.status()
        if not self.said or (self.said[-1].attempt, self.said[-1].phase) != (
            now.attempt,
            now.phase,
        ):
            self.said.append(now)
        else:
            self.said[-1] = now
