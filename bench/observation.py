"""Measure the cost of metrics, heartbeats and events per update and per scrape.

    python -m bench.observation [--rounds 300]

One rank trains on the CPU, with and without these (together: observation) in turns of a few
updates. The exit code is 1 if a goal is missed. A ratio misses its goal only if its whole
confidence interval is above the goal.
"""

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from bench.host import Host
from ddp_agent.config import AgentConfig
from ddp_agent.status.gpus import Gpu
from ddp_agent.status.metrics import AgentCollector
from ddp_operator.runtime.job_metrics import JobCollector
from ddp_trainer.config.settings import resolve
from ddp_trainer.data.loader import by_update
from ddp_trainer.observe.heartbeats import HeartbeatWriter
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.run.opening import RunRequest, open_run
from ddp_trainer.run.run import Run
from ddp_trainer.step import train_step
from ddp_trainer.stop import StopFlag
from ddp_wire.activity import Activity
from ddp_wire.contract import Env
from ddp_wire.exposition import render
from ddp_wire.families import UPDATE_SECONDS_BUCKETS
from ddp_wire.messages import (
    AgentPhase,
    AgentStatus,
    CheckpointInfo,
    LocalHeartbeat,
    Progress,
    RankPhase,
    RankTimes,
)
from tests.agent.support import environment
from tests.harness import ending

TURN = 20
"""Updates of one turn."""
STEP_SECONDS = 0.05
"""Seconds of the update to which the goals relate."""
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
    low: float | None = None
    """Lower end of the 95 % interval of the value, if the value has one."""

    @property
    def missed(self) -> bool:
        """Whether the value, with its whole interval, is above its goal."""
        return (self.value if self.low is None else self.low) > self.goal

    def __str__(self) -> str:
        """Return the figure as a row of a table."""
        return f"| {self.name} | {self.value:.4g} | {self.goal:g} |"


class _Nothing:
    """Replacement for a part of the observation that is switched off."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


class Switch:
    """Switch that turns the observation of a run on and off."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._entered = run.learner.trace._entered
        self._parts = (run.report.heartbeats, run.report.times, run.work)

    def turn(self, on: bool) -> None:
        """Switch observation on or off."""
        run, nothing = self._run, _Nothing()
        run.learner.trace._entered = self._entered if on else ()
        given: Any = self._parts if on else (nothing, nothing, nothing)
        run.report.heartbeats, run.report.times, run.work = given


def updates(run: Run) -> Iterator[None]:
    """Do one update after another, as the loop does between two exchanges of the ranks."""
    trace = run.learner.trace
    while True:
        for micro_batches in by_update(trace.waits(Activity.DATA, run.train_loader)):
            samples = train_step(run.learner, micro_batches, run.position.step, 1.0)
            run.advance(samples)
            trace.after_update(run.position.step)
            yield


def cost_of_update(folder: Path, rounds: int) -> list[Figure]:
    """Measure an update with and without observation, and the observation calls alone."""
    run = _run_on_cpu(folder)
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
    switch.turn(True)
    differences = [on - off for on, off in zip(seconds[True], seconds[False], strict=True)]
    low, high = interval(differences)
    without, added = statistics.median(seconds[False]), statistics.median(differences)
    print(f"an update takes {1e3 * without:.3f} ms; observation adds {1e6 * added:.1f} us")
    print(f"95 % interval {1e6 * low:.1f} to {1e6 * high:.1f} us, {rounds} turns of {TURN} each")
    calls = seconds_per_call(lambda: _observe(run))
    beats = seconds_per_call(lambda: _beat(run))
    share = STEP_SECONDS
    return [
        Figure("observation, added to an update", added / share, MOST_OF_STEP, low / share),
        Figure("its calls alone", calls / share, MOST_OF_STEP),
        Figure("calls of heartbeats", beats / share, MOST_OF_HEARTBEATS),
    ]


def _run_on_cpu(folder: Path) -> Run:
    """Open a run of one rank without automatic reports."""
    quiet = {"log": {"every_steps": 10**9}, "device": "cpu"}
    document = {"global_batch": 32, "max_steps": 10**6} | quiet
    ranks = Ranks.from_environment({})
    request = RunRequest("ddp_trainer.tasks.miniresnet:build", resolve(document))
    return open_run(request, ranks, StopFlag(), HeartbeatWriter(folder, ranks, 1))


def _observe(run: Run) -> None:
    """Make all observation calls of one update."""
    trace = run.learner.trace
    for activity in (Activity.DATA, Activity.FORWARD, Activity.BACKWARD, Activity.OPTIMIZER):
        trace.enter(activity)
    run.advance(1)
    trace.after_update(run.position.step)


def _beat(run: Run) -> None:
    """Make only the heartbeat calls of one update."""
    for activity in (Activity.DATA, Activity.FORWARD, Activity.BACKWARD, Activity.OPTIMIZER):
        run.report.heartbeats.enter(activity)
    run.report.heartbeats.step(7)


def seconds_per_call(call: Callable[[], object], count: int = 200_000) -> float:
    """Return the mean seconds of one call, including work that is due only in some calls."""
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def interval(values: Sequence[float], draws: int = 2000) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of a median."""
    chance = random.Random(0)  # noqa: S311 (resampling)
    drawn = (chance.choices(values, k=len(values)) for _ in range(draws))
    medians = sorted(map(statistics.median, drawn))
    return medians[int(0.025 * draws)], medians[int(0.975 * draws)]


def cost_of_agent_scrape(folder: Path) -> list[Figure]:
    """Measure a scrape of an agent with eight ranks that report all their metrics."""
    counts = [5] * (len(UPDATE_SECONDS_BUCKETS) + 1)
    phases = dict.fromkeys(("data", "forward", "backward", "optimizer"), 0.01)
    times = RankTimes(
        updates=counts, update_seconds=1.0, phase_seconds=phases, memory_bytes=1 << 30
    )
    metrics = {f"metric_{index}": 0.5 for index in range(20)}
    progress = Progress(step=7, total_steps=9, loss=0.5, learning_rate=0.1, metrics=metrics)
    heartbeats = [
        LocalHeartbeat(
            attempt=1, rank=rank, local_rank=rank, phase=RankPhase.TRAINING, at=1.0, times=times
        )
        for rank in range(8)
    ]
    status = AgentStatus(
        node_index=0,
        attempt=1,
        phase=AgentPhase.TRAINING,
        since=1.0,
        ranks=heartbeats,
        progress=progress,
        checkpoint=CheckpointInfo(step=5, path="/c", at=1.0),
    )
    gpus = [Gpu(index, 0.9, 1 << 36, 1 << 37, 60.0, 400.0, 0) for index in range(8)]
    config = AgentConfig.from_environment(environment(folder, **{Env.PROCS_PER_NODE: "8"}))
    collector = AgentCollector(config, lambda: status, lambda: gpus)
    seconds = seconds_per_call(lambda: len(render(collector)), 200)
    return [Figure("scrape of an agent of 8 ranks, seconds", seconds, MOST_AGENT_SECONDS)]


def cost_of_operator_scrape(jobs: int = 1000) -> list[Figure]:
    """Measure a scrape of the operator with the metrics of many jobs."""
    conditions = [
        {"type": kind, "status": "True", "reason": "Running"}
        for kind in ("Succeeded", "PodsReady", "Rendezvoused", "Checkpointed")
    ]
    now = datetime.now(UTC).isoformat()
    status = {
        "attempt": 3,
        "pods": {"image": "example.com/trainer:1.2.3"},
        "conditions": conditions,
        "ready": "16/16",
        "restarts": 1,
        "startTime": now,
        "progress": {"step": 7, "totalSteps": 9, "loss": "0.5", "samplesPerSecond": 9, "time": now},
        "lastCheckpoint": {"step": 5, "time": now},
        "lastFailure": {"reason": "Hung", "pod": "job-3", "node": "node-7", "rank": 9, "time": now},
        "straggler": {"rank": 9, "pod": "job-3", "node": "node-7", "ratio": "1.4", "part": "data"},
    }
    spec = {"nodes": 16}
    documents = [
        {"metadata": {"namespace": "team-a", "name": f"job-{i}"}, "spec": spec, "status": status}
        for i in range(jobs)
    ]
    collector = JobCollector(lambda: documents)
    seconds = seconds_per_call(lambda: len(render(collector)), 5)
    size = len(render(collector))
    return [
        Figure(f"scrape of the operator, {jobs:,} jobs, seconds", seconds, MOST_OPERATOR_SECONDS),
        Figure(f"scrape of the operator, {jobs:,} jobs, bytes", size, MOST_OPERATOR_BYTES),
    ]


def main() -> None:
    """Measure, print the table, and check the goals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=300)
    options = parser.parse_args()
    torch.set_num_threads(1)
    host = Host()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder = Path(name)
        found = cost_of_update(folder, options.rounds)
        found += [*cost_of_agent_scrape(folder), *cost_of_operator_scrape()]
    print("\n| figure (of an update: as a share of 50 ms) | value | goal |\n| --- | --- | --- |")
    print("\n".join(map(str, found)))
    print(f"\nCPU steal time {host.steal_fraction():.0%} of the busy time.")
    if missed := [one.name for one in found if one.missed]:
        sys.exit(f"goal missed: {'; '.join(missed)}")


if __name__ == "__main__":
    ending.script(main)
