"""Measure what observation costs: in an update, in a scrape of an agent and of the operator.

    python -m tests.benchmarks.observation [--rounds 300]

One rank trains on the CPU, with and without observation in turns of a few updates. The exit code
is 1 if a goal is missed. A ratio misses its goal only if its whole interval is above it.
"""

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ddp_agent.config import AgentConfig
from ddp_agent.metrics import AgentCollector
from ddp_operator.runtime.job_metrics import JobCollector
from ddp_trainer.config.settings import resolve
from ddp_trainer.data.loader import by_update
from ddp_trainer.observe.heartbeats import HeartbeatWriter
from ddp_trainer.observe.times import TimeMeter
from ddp_trainer.observe.work import WorkMeter
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.run.opening import RunRequest, open_run
from ddp_trainer.run.run import Run
from ddp_trainer.step import train_step
from ddp_trainer.stop import StopFlag
from ddp_wire.contract import AgentPhase, AgentStatus, LocalHeartbeat, Progress, RankPhase, RankTimes
from ddp_wire.exposition import render
from ddp_wire.families import UPDATE_SECONDS_BUCKETS
from tests.agent.support import environment
from tests.benchmarks.host import Host
from tests.harness import ending

TURN = 20
"""Updates of one turn."""
STEP_SECONDS = 0.05
"""Duration of the update of which the goals are shares."""
MOST_OF_STEP = 0.005
MOST_OF_HEARTBEATS = 0.001
MOST_AGENT_SECONDS = 0.005
MOST_OPERATOR_SECONDS, MOST_OPERATOR_BYTES = 0.5, 2_000_000


@dataclass(frozen=True)
class Figure:
    """One measured value with its goal."""

    name: str
    value: float
    goal: float
    unit: str
    low: float | None = None
    """Lower end of the 95 % interval of a ratio."""

    @property
    def missed(self) -> bool:
        return (self.value if self.low is None else self.low) > self.goal

    def __str__(self) -> str:
        return f"| {self.name} | {self.value:.5g} {self.unit} | {self.goal:g} {self.unit} |"


class _Nothing:
    """Stands in for a switched-off part of the observation."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


class Switch:
    """Switch between a run with and without observation."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._enter = run.learner.trace._enter
        self._parts = (run.report.heartbeats, run.report.times, run.work)

    def turn(self, on: bool) -> None:
        run, nothing = self._run, _Nothing()
        run.learner.trace._enter = self._enter if on else lambda _: None
        given: Any = self._parts if on else (nothing, nothing, nothing)
        run.report.heartbeats, run.report.times, run.work = given


def updates(run: Run) -> Iterator[None]:
    """Make one update after another, as the loop does between two exchanges."""
    trace = run.learner.trace
    while True:
        for micro_batches in by_update(trace.ranges("data", run.train_loader)):
            samples = train_step(run.learner, micro_batches, run.position.step, 1.0)
            run.advance(samples)
            trace.after_update(run.position.step)
            yield


def cost_of_update(folder: Path, rounds: int) -> list[Figure]:
    """Measure an update with and without observation, and the calls of one update by themselves."""
    document = {"global_batch": 32, "max_steps": 10**6, "log": {"every_steps": 10**9}, "device": "cpu"}
    ranks = Ranks.from_environment({})
    heartbeats = HeartbeatWriter(folder, ranks, 1)
    request = RunRequest("ddp_trainer.tasks.miniresnet:build", resolve(document))
    run = open_run(request, ranks, StopFlag(), heartbeats)
    step, switch = updates(run), Switch(run)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for round_ in range(rounds):
        for on in (True, False) if round_ % 2 else (False, True):
            switch.turn(on)
            next(step)  # The first update of a turn has cold caches.
            start = time.perf_counter()
            for _ in range(TURN):
                next(step)
            seconds[on].append((time.perf_counter() - start) / TURN)
    ratios = [on / off for on, off in zip(seconds[True], seconds[False], strict=True)]
    low, high = interval(ratios)
    with_it, without = (statistics.median(seconds[on]) for on in (True, False))
    added = with_it - without
    print(f"an update takes {1e3 * without:.3f} ms without observation, {1e3 * with_it:.3f} ms with")
    print(f"ratio {statistics.median(ratios):.4f}, 95 % interval {low:.4f} to {high:.4f}")
    calls = seconds_per_call(lambda: _observe(run, switch))
    beats = seconds_per_call(lambda: _beat(heartbeats))
    print(f"its calls alone take {1e6 * calls:.2f} us, those of heartbeats {1e6 * beats:.2f} us")
    share = (low - 1.0) * without / STEP_SECONDS
    return [
        Figure("all observation, added to an update", added / STEP_SECONDS, MOST_OF_STEP, "of 50 ms", share),
        Figure("its calls alone", calls / STEP_SECONDS, MOST_OF_STEP, "of 50 ms"),
        Figure("calls of heartbeats", beats / STEP_SECONDS, MOST_OF_HEARTBEATS, "of 50 ms"),
    ]


def _observe(run: Run, switch: Switch) -> None:
    """Make the calls of one update."""
    trace = run.learner.trace
    for name in ("data", "forward", "backward", "optimizer"):
        with trace.range(name):
            pass
    run.advance(1)
    trace.after_update(run.position.step)


def _beat(heartbeats: HeartbeatWriter) -> None:
    from ddp_wire.activity import Activity  # noqa: PLC0415

    for activity in (Activity.DATA, Activity.FORWARD, Activity.BACKWARD, Activity.OPTIMIZER):
        heartbeats.enter(activity)
    heartbeats.step(7)


def seconds_per_call(call: Callable[[], None], count: int = 200_000) -> float:
    """Return the mean seconds of a call, as part of one second at least: heartbeats are periodic."""
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def interval(values: list[float], draws: int = 2000) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of a median."""
    chance = random.Random(0)  # noqa: S311 (resampling)
    medians = sorted(
        statistics.median(chance.choices(values, k=len(values))) for _ in range(draws)
    )
    return medians[int(0.025 * draws)], medians[int(0.975 * draws)]
