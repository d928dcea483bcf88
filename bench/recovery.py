"""Measure how long training stops after a fault, with a DDPJob and with torchrun alone.

    python -m bench.recovery [--repeats 10] [--torchrun-repeats 10] [--seed 0]
                                   [--wheels DIR] [--only CASE] [--without-torchrun]
                                   [--unreachable-agents]

Runs on the real two-node cluster, with the same task, image, sizes and faults for a DDPJob and for
torchrun in a StatefulSet. Each recovery counts from the fault to the first new update of every
rank, by the clock of one machine. The exit code is 1 if the DDPJob misses a goal. If the benchmark
is interrupted, it prints its results so far.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from bench.cases import CASES, Case
from bench.figures import (
    LIMIT_SECONDS,
    Recovery,
    Result,
    missed,
    notes,
    phases_table,
    table,
)
from bench.gangs import (
    MeasuredGang,
    Ours,
    SparedOurs,
    UnreachableOurs,
    default_torchrun,
    has_saved,
    newest_step,
    trains,
    tuned_torchrun,
)
from bench.host import Host
from tests.fault_player.unreachable import unreachable_agents
from tests.harness import ending, install
from tests.harness.cluster import Cluster
from tests.harness.install import Images, eventually

NAMESPACE = "bench"
GIVE_UP_AFTER = 2
"""Number of failed recoveries in a row, each in a new gang, after which a gang counts as unable to
recover."""
UNREACHABLE_GOAL_SECONDS = 15.0
"""Goal for the p95 recovery time of each case while the operator reaches no agent, in seconds."""
OPERATOR_NODE = "node-1"
"""Kubernetes node on which the operator runs. The benchmark never takes this node down."""


def measure(gang: MeasuredGang, case: Case, rng: random.Random) -> Recovery:
    """Inject the fault once and wait until every rank has done an update after the fault."""
    # An attempt without a checkpoint counts as stalled, and each one in a row costs more time.
    eventually(
        lambda: trains(gang) and has_saved(gang) and gang.stands_by(),
        "all ranks train and have saved",
        LIMIT_SECONDS,
    )
    reached = newest_step(gang)
    started = case.inject(gang, rng)
    lost = {pod["metadata"]["uid"] for pod in case.pods_on_lost_node(gang)}
    detected: list[float] = []
    limit = LIMIT_SECONDS + (case.detection_seconds if lost else 0.0)

    def recovered() -> bool:
        if lost and not detected:
            left = [p["metadata"] for p in gang.pods() if "deletionTimestamp" not in p["metadata"]]
            if not lost & {metadata["uid"] for metadata in left}:
                detected.append(time.time())
        return trains(gang, started)

    try:
        eventually(recovered, f"recovery from {case.name}", limit)
    except TimeoutError:
        return Recovery(None)
    stepped = (
        max(heartbeat.first_step_at or started for _, heartbeat in gang.heartbeats()) - started
    )
    after = started + stepped - detected[0] if detected else None
    resumed = max(heartbeat.resumed_from or 0 for _, heartbeat in gang.heartbeats())
    back = seconds_until_back(gang, reached, started)
    return Recovery(
        stepped,
        after_detection=after,
        back=back,
        repeated=max(0, reached - resumed),
        phases=gang.phases(started),
    )


def seconds_until_back(gang: MeasuredGang, reached: int, started: float) -> float | None:
    """Return the seconds from the fault until the run has repeated all updates that it lost."""
    try:
        eventually(
            lambda: newest_step(gang) >= reached, "the run is back where it was", LIMIT_SECONDS
        )
    except TimeoutError:
        return None
    return time.time() - started


def measure_case(gang: MeasuredGang, case: Case, repeats: int, rng: random.Random) -> Result:
    """Measure all repeats of a case. Use a new gang if the last fault would affect the next one."""
    result = Result(case, gang.label)
    failures_in_row = 0
    started = False
    while len(result.recoveries) < repeats and failures_in_row < GIVE_UP_AFTER:
        if not started:
            start_gang(gang, case)
            started = True
        recovery = measure(gang, case, rng)
        case.restore(gang)
        result.recoveries.append(recovery)
        print(f"{case.name}, {gang.label}: {recovery}", flush=True)
        if recovery.repeated and isinstance(gang, Ours):
            print("\n".join(gang.state_lines()), flush=True)
        failures_in_row = failures_in_row + 1 if recovery.seconds is None else 0
        if case.needs_new_setup or recovery.seconds is None or gang.affects_next_recovery():
            gang.stop()
            started = False
    if started:
        gang.stop()
    result.never = failures_in_row == GIVE_UP_AFTER
    return result


def start_gang(gang: MeasuredGang, case: Case) -> None:
    """Create a gang whose pods are spread so that the fault can be injected.

    Raises:
        TimeoutError: The scheduler did not spread the pods as the case needs it.
    """
    for _ in range(5):
        gang.start()
        if case.can_inject(gang):
            return
        gang.stop()
    raise TimeoutError(f"{case.name}: {gang.label} has no pod on the node that must be lost")


def main() -> None:
    """Start a cluster, measure every case on every gang and print the tables."""
    options = read_options()
    imports = statistics.median(import_seconds() for _ in range(3))
    built = install.build_images(options.wheels)
    results: list[Result] = []
    cluster, host = Cluster.up(2), Host()
    try:
        results.extend(measure_all(cluster, built, options))
    finally:
        cluster.down()
        if results:
            text = notes(options.seed, imports, host.steal_fraction())
            print(f"\n{table(results)}\n\n{text}\n\n{phases_table(results)}")
    missed_cases = missed(results)
    if missed_cases:
        sys.exit(f"goal missed: {', '.join(missed_cases)}")


def measure_all(cluster: Cluster, built: Images, options: argparse.Namespace) -> Iterator[Result]:
    """Install the product on a cluster and yield the results of the chosen cases on every gang."""
    install.load_images(cluster, built)
    install.install_chart(cluster, {r"nodeSelector.kubernetes\.io/hostname": OPERATOR_NODE})
    install.create_namespace(cluster, NAMESPACE)
    cases = [case for case in CASES if options.only in {None, case.name}]
    if options.unreachable_agents:
        slower = [replace(case, goal_seconds=UNREACHABLE_GOAL_SECONDS) for case in cases]
        gang = UnreachableOurs(cluster, NAMESPACE)
        with unreachable_agents(cluster):
            yield from run_cases([gang], slower, {gang.label: options.repeats}, options.seed)
        return
    gangs: list[MeasuredGang] = [Ours(cluster, NAMESPACE)]
    if not options.without_torchrun:
        gangs.append(default_torchrun(cluster, NAMESPACE))
        gangs.append(tuned_torchrun(cluster, NAMESPACE))
    counts = {gang.label: options.torchrun_repeats for gang in gangs[1:]}
    repeats = {gangs[0].label: options.repeats} | counts
    yield from run_cases(gangs, cases, repeats, options.seed)


def import_seconds() -> float:
    """Return the seconds in which a new process imports torch. New pods spend most time on this."""
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.monotonic() - started


def run_cases(
    gangs: Sequence[MeasuredGang], cases: Sequence[Case], repeats: Mapping[str, int], seed: int
) -> Iterator[Result]:
    """Yield the results of every case on every gang, with the same random choices for all gangs."""
    for case in cases:
        for gang in [spared(gang) for gang in gangs] if case.has_spare else gangs:
            rng = random.Random(f"{seed} {case.name}")  # noqa: S311
            yield measure_case(gang, case, repeats[gang.label], rng)


def spared(gang: MeasuredGang) -> MeasuredGang:
    """Return the gang with a spare pod, if it is a DDPJob. torchrun has no spares."""
    if type(gang) is Ours:
        return SparedOurs(gang.cluster, gang.namespace, gang.label)
    return gang


def read_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--torchrun-repeats", type=int, default=10)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("DDP_SEED", "0")))
    parser.add_argument("--wheels", type=Path, default=Path("../shared/wheels"))
    parser.add_argument(
        "--only", choices=[case.name for case in CASES], help="measure only this fault"
    )
    parser.add_argument("--without-torchrun", action="store_true")
    parser.add_argument(
        "--unreachable-agents",
        action="store_true",
        help="measure DDPJobs alone, with an operator that reaches no agent",
    )
    return parser.parse_args()


if __name__ == "__main__":
    ending.script(main)
