"""Measure how long an elastic job stops training when its size changes.

    python -m bench.resizes [--repeats 10] [--wheels DIR]

Runs on the real two-node cluster. The user scales the job from two nodes to one and back. A pause
counts from the operator's decision to the first update of all ranks, as in `status.lastResize`. The
exit code is 1 if the p95 of a direction misses its goal.
"""

import argparse
import math
import statistics
import sys
from pathlib import Path
from typing import Any

from bench.recovery import NAMESPACE
from tests.cluster.elastic_jobs import elastic_job, scale, wait_for_members
from tests.cluster.support import Job
from tests.harness import ending, install
from tests.harness.cluster import Cluster
from tests.harness.install import eventually

GOAL_SECONDS = {"shrink": 5.0, "grow": 4.0}
"""Goals for the p95 pause, by direction of the resize, in seconds on two cores."""


def main() -> None:
    """Start a cluster, change the size again and again, and print the pauses."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--wheels", type=Path, default=Path("../shared/wheels"))
    options = parser.parse_args()
    built = install.build_images(options.wheels)
    cluster = Cluster.up(2)
    try:
        install.load_images(cluster, built)
        install.install_chart(cluster)
        install.create_namespace(cluster, NAMESPACE)
        pauses = measure(Job.apply(cluster, NAMESPACE, elastic_job()), options.repeats)
    finally:
        cluster.down()
    missed = [direction for direction, found in pauses.items() if not report(direction, found)]
    if missed:
        sys.exit(f"goal missed: {', '.join(missed)}")


def measure(job: Job, repeats: int) -> dict[str, list[float]]:
    """Return the seconds of each pause, by direction of the resize."""
    wait_for_members(job, {0, 1})
    pauses: dict[str, list[float]] = {"shrink": [], "grow": []}
    for _ in range(repeats):
        scale(job, 1)
        pauses["shrink"].append(pause(wait_for_members(job, {0})))
        eventually(lambda: len(job.pods()) == 1, "the other pod has ended", 60)
        scale(job, 2)
        pauses["grow"].append(pause(wait_for_members(job, {0, 1})))
    return pauses


def pause(status: dict[str, Any]) -> float:
    """Return the seconds of the pause of the last resize."""
    resize = status["lastResize"]
    print(f"{resize['fromNodes']} to {resize['toNodes']} nodes: {resize}", flush=True)
    return float(resize["milliseconds"]) / 1000


def report(direction: str, found: list[float]) -> bool:
    """Print the pauses of one direction. Return whether their p95 meets its goal."""
    p50, p95 = statistics.median(found), sorted(found)[math.ceil(0.95 * len(found)) - 1]
    goal = GOAL_SECONDS[direction]
    print(f"{direction}: p50 {p50:.2f} s, p95 {p95:.2f} s of {len(found)}, goal {goal} s")
    return p95 <= goal


if __name__ == "__main__":
    ending.script(main)
