"""How long a run stands still after a fault: from the fault to the first new update of every rank.

    python -m tests.bench.recovery [--repeats 10] [--seed 0] [--wheels DIR]

Runs on the real two-node cluster. All times are of one machine's clock. Ends non-zero when a goal
is missed.
"""

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from ddp_agent.contract import Timeline
from tests.cluster.support import JSON, Job, agents, kill_rank
from tests.harness.cluster import Cluster
from tests.tools import install
from tests.tools.install import eventually

NODES, RANKS = 2, 4
LIMIT_SECONDS = 120.0


@dataclass(frozen=True)
class Case:
    """A fault and what is asked of its recovery."""

    name: str
    goal_seconds: float
    """p95, from fault to first new update, on two cores."""
    strike: Callable[[Job, random.Random], float]
    """Does it, and returns when, in Unix seconds."""


@dataclass
class Recovery:
    """One measured recovery: seconds after the fault, for the last node to get there."""

    noticed: float
    ordered: float
    launched: float
    joined: float
    stepped: float


@dataclass
class Result:
    """All recoveries of a case."""

    case: Case
    recoveries: list[Recovery] = field(default_factory=list)

    def quantile(self, part: str, q: float) -> float:
        """A quantile of one part of the recoveries, by the nearest rank above."""
        values = sorted(getattr(r, part) for r in self.recoveries)
        return float(values[min(len(values) - 1, int(q * len(values)))])


def strike_rank(job: Job, chance: random.Random) -> float:
    """SIGKILL to a random rank."""
    return kill_rank(job, chance.randrange(RANKS))


def strike_pod(job: Job, chance: random.Random) -> float:
    """Delete a random pod, rank 0's included, without grace."""
    name = f"{job.name}-{chance.randrange(NODES)}"
    began = time.time()
    job.kubectl("delete", "pod", name, "--grace-period=0", "--force", "--wait=false")
    return began


CASES = (Case("rank crash", 4.0, strike_rank), Case("pod kill", 8.0, strike_pod))


def endless_job() -> JSON:
    """A run that outlasts the measurement and saves often."""
    config = {"max_steps": 1_000_000, "global_batch": 256, "eval_every_steps": 1_000_000}
    return {
        "apiVersion": "ddp-trainer.dev/v1alpha1",
        "kind": "DDPJob",
        "metadata": {"name": "recovery"},
        "spec": {
            "nodes": NODES,
            "procsPerNode": RANKS // NODES,
            "task": "ddp_trainer.tasks.miniresnet:build",
            "config": config,
            "checkpoint": {"claimName": install.CLAIM, "everySteps": 20},
            "maxRestarts": 1000,
        },
    }


def timelines(job: Job, attempt: int) -> list[Timeline]:
    """Timelines of an attempt in which every node has done an update; empty before."""
    said = [a.timeline for a in agents(job) if a.attempt == attempt]
    done = [t for t in said if t is not None and t.stepped is not None]
    return done if len(done) == NODES else []


def measure(job: Job, case: Case, chance: random.Random) -> Recovery:
    """Strike once and wait until every rank has done an update of the next attempt."""
    attempt = int(job.status["attempt"])
    eventually(lambda: bool(timelines(job, attempt)), "the attempt trains", LIMIT_SECONDS)
    saved = job.status.get("lastCheckpoint", {}).get("step", 0)
    eventually(
        lambda: job.status.get("lastCheckpoint", {}).get("step", 0) > saved, "a new checkpoint", 60
    )
    began = case.strike(job, chance)
    found: list[Timeline] = []

    def recovered() -> bool:
        found[:] = timelines(job, attempt + 1)
        return bool(found)

    eventually(recovered, f"recovery from {case.name}", LIMIT_SECONDS)
    failure = job.status["lastFailure"]

    def last(part: str) -> float:
        return max(float(getattr(t, part)) for t in found) - began

    return Recovery(
        noticed=_unix(failure["time"]) - began,
        ordered=last("ordered"),
        launched=last("launched"),
        joined=last("joined"),
        stepped=last("stepped"),
    )


def _unix(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def table(results: list[Result]) -> str:
    """The figures, as Markdown: seconds after the fault."""
    parts = ("noticed", "ordered", "launched", "joined", "stepped")
    head = "| case | repeats | " + " | ".join(f"{p} p50" for p in parts) + " | stepped p95 | goal |"
    rows = [head, "|" + " --- |" * (len(parts) + 4)]
    for result in results:
        middle = " | ".join(f"{result.quantile(p, 0.5):.2f}" for p in parts)
        p95, goal = result.quantile("stepped", 0.95), result.case.goal_seconds
        count = len(result.recoveries)
        rows.append(f"| {result.case.name} | {count} | {middle} | {p95:.2f} | {goal:.0f} |")
    return "\n".join(rows)


def main() -> None:
    """Bring a cluster up, measure every case, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("DDP_SEED", "0")))
    parser.add_argument("--wheels", type=Path, default=Path("../shared/wheels"))
    options = parser.parse_args()
    chance = random.Random(options.seed)  # noqa: S311 (which rank to strike)
    built = install.build_images(options.wheels)
    cluster = Cluster.up(NODES)
    try:
        install.load_images(cluster, built)
        install.install_chart(cluster)
        install.make_namespace(cluster, "bench")
        results = [Result(case) for case in CASES]
        job = Job.apply(cluster, "bench", endless_job())
        job.wait_for("Running")
        for result in results:
            for _ in range(options.repeats):
                result.recoveries.append(measure(job, result.case, chance))
                line = {k: round(v, 2) for k, v in vars(result.recoveries[-1]).items()}
                print(f"{result.case.name}: {json.dumps(line)}", flush=True)
    finally:
        cluster.down()
    print(table(results))
    everything = [r.stepped for result in results for r in result.recoveries]
    print(f"median of all: {statistics.median(everything):.2f} s")
    late = [r for r in results if r.quantile("stepped", 0.95) > r.case.goal_seconds]
    if late:
        sys.exit("goal missed: " + ", ".join(r.case.name for r in late))


if __name__ == "__main__":
    main()
