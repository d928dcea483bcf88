"""Measure the operator with large jobs and with many jobs on a control plane with fake nodes.

    python -m bench.scale [--repeats 5] [--rounds 3] [--pods 1000] [--jobs 1000]
                                     [--large 9999]
                                     [--only one,starts,neighbours,many,large,policy,peers]
                                     [--elastic]

Without `--only` all loads are measured. The first run builds the peers, which takes minutes.
With `--elastic` the one job and the many jobs may train on half of their nodes. The exit code is 1
if a goal is missed. The figures of one job are the medians of its repeats.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.host import Host
from bench.scale import bare_client, goals
from bench.scale.goals import Figure
from bench.scale.loads import many_jobs, one_job
from bench.scale.neighbours import beside_crowds
from bench.scale.peers import beside_peers
from bench.scale.policy import with_and_without_policy
from bench.scale.stage import FAKE_NODES, Stage
from bench.scale.starts import beside_large_jobs
from tests.api.client import path_of
from tests.harness import ending

_ALONE = {"one", "starts", "neighbours", "many", "large"}
"""Names of the loads that do not need the peer operators."""
CROWD = 100
"""Number of jobs with silent or hostile agents that run while the start of a new job is
measured."""


async def measure(options: argparse.Namespace, folder: Path, found: list[Figure]) -> None:
    """Measure all chosen loads and append their figures."""
    if "policy" in options.only:
        found += goals.of_policy(await with_and_without_policy(options.pods, options.rounds))
    if options.only & _ALONE:
        async with Stage.up(folder) as stage:
            await _measure_alone(stage, options, found)
    if "peers" in options.only:
        # The webhooks of the peers stay installed, so the peers get a control plane of their own.
        async with Stage.up(folder) as stage:
            peers = await beside_peers(stage, options.pods, options.rounds, folder)
            found += goals.of_peers(peers)


async def _measure_alone(stage: Stage, options: argparse.Namespace, found: list[Figure]) -> None:
    """Measure those of the chosen loads that do not need the peer operators."""
    if "one" in options.only:
        found += await _repeat(stage, options)
    if "starts" in options.only:
        found += goals.of_starts(await beside_large_jobs(stage, "starts"))
    if "neighbours" in options.only:
        found += goals.of_neighbours(await beside_crowds(stage, CROWD, options.rounds))
    if "many" in options.only:
        many = await many_jobs(stage, "many", options.jobs, 4, elastic=options.elastic)
        print("\n".join(many.notes), flush=True)
        found += goals.of_many_jobs(many)
    if "large" in options.only:
        large = await one_job(stage, "large", options.large)
        print(f"{options.large:,} pods: {large}", flush=True)
        found += goals.of_one_job(large)


async def _repeat(stage: Stage, options: argparse.Namespace) -> list[Figure]:
    """Measure one job several times and return the median of each figure."""
    pods = options.pods
    runs, ours, theirs = [], [], []
    for repeat in range(options.repeats):
        run = await one_job(stage, f"one-{repeat}", pods, elastic=options.elastic)
        bare = await _create_bare_pods(stage, f"bare-{repeat}", run.pod, pods)
        print(f"{pods:,} pods, repeat {repeat + 1}: {run}, bare client {bare:.2f} s", flush=True)
        runs.append(goals.of_one_job(run))
        ours.append(run.created)
        theirs.append(bare)
    middle = [statistics.median(each.value for each in same) for same in zip(*runs, strict=True)]
    figures = [replace(one, value=value) for one, value in zip(runs[0], middle, strict=True)]
    return figures + goals.of_bare_client(pods, ours, theirs)


async def _create_bare_pods(stage: Stage, namespace: str, pod: dict[str, Any], count: int) -> float:
    """Return the seconds that a plain API client needs to create the same pods."""
    cluster = stage.plane.cluster
    seconds = await bare_client.create_pods(cluster, stage.api, namespace, pod, count)
    await stage.api.call("DELETE", path_of("pods", namespace))
    await stage.wait_until_gone(namespace)
    return seconds


def _loads(text: str) -> set[str]:
    """Return the loads named in a comma-separated list.

    Raises:
        argparse.ArgumentTypeError: There is no such load.
    """
    chosen, known = set(text.split(",")), _ALONE | {"policy", "peers"}
    if unknown := chosen - known:
        raise argparse.ArgumentTypeError(
            f"the loads are {', '.join(sorted(known))}; given: {', '.join(sorted(unknown))}"
        )
    return chosen


def main() -> None:
    """Read the command line, measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--large", type=int, default=9999)
    parser.add_argument("--elastic", action="store_true")
    parser.add_argument("--only", type=_loads, default=_ALONE | {"policy", "peers"})
    options = parser.parse_args()
    folder, host = Path(tempfile.mkdtemp(prefix="ddp-bench-scale-")), Host()
    print(f"logs: {folder}", flush=True)
    found: list[Figure] = []
    try:
        asyncio.run(measure(options, folder, found))
    finally:
        if found:
            print(f"\n{goals.table(found)}\n")
            print(f"- {FAKE_NODES} fake nodes, whose pods run at once (none for the policy);")
            print(f"  CPU steal time {host.steal_fraction():.0%} of the busy time.")
    missed = [f"{one.load}: {one.name}" for one in found if one.missed]
    if missed:
        sys.exit(f"goal missed: {'; '.join(missed)}")


if __name__ == "__main__":
    ending.script(main)
