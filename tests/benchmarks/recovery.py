"""How long a run stands still after a fault, beside torchrun without an operator.

    python -m tests.benchmarks.recovery [--repeats 10] [--torchrun-repeats 10] [--seed 0]
                                   [--wheels DIR] [--only CASE] [--without-torchrun]

Runs on the real two-node cluster: the same task, image, sizes and faults for a DDPJob and for
torchrun in a StatefulSet. Measured from the fault to the first new update of every rank, by one
machine's clock. Ends non-zero when a goal of ours is missed. What has been measured is printed even
when it is broken off.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.benchmarks.cases import CASES, Case
from tests.benchmarks.figures import (
    LIMIT_SECONDS,
    Recovery,
    Result,
    missed,
    notes,
    parts_table,
    table,
)
from tests.benchmarks.gangs import Ours, SetUp, default_torchrun, has_saved, trains, tuned_torchrun
from tests.benchmarks.host import Host
from tests.harness import ending
from tests.harness.cluster import Cluster
from tests.tools import install
from tests.tools.install import Images, eventually

NAMESPACE = "bench"
GIVE_UP_AFTER = 2
"""That many times in a row, each in a fresh set-up, are never."""
OPERATOR_NODE = "node-1"
"""Where the operator runs, so that a lost node is lost to the run alone."""


def measure(gang: SetUp, case: Case, chance: random.Random) -> Recovery:
    """Strike once and wait until every rank has done an update of its next life."""
    # An attempt that has saved nothing is a stalled one, and costs more the more of them there are.
    eventually(lambda: trains(gang) and has_saved(gang), "a save by all ranks", LIMIT_SECONDS)
    began = case.strike(gang, chance)
    lost = {pod["metadata"]["uid"] for pod in case.doomed(gang)}
    detected: list[float] = []
    limit = LIMIT_SECONDS + (case.detection_seconds if lost else 0.0)

    def recovered() -> bool:
        if lost and not detected:
            left = [p["metadata"] for p in gang.pods() if "deletionTimestamp" not in p["metadata"]]
            if not lost & {metadata["uid"] for metadata in left}:
                detected.append(time.time())
        return trains(gang, began)

    try:
        eventually(recovered, f"recovery from {case.name}", limit)
    except TimeoutError:
        return Recovery(None)
    stepped = max(beat.first_step_at or began for _, beat in gang.beats()) - began
    after = began + stepped - detected[0] if detected else None
    return Recovery(stepped, after_detection=after, parts=gang.parts(began))


def measure_case(gang: SetUp, case: Case, repeats: int, chance: random.Random) -> Result:
    """All repeats of a case; a set-up is kept as long as it is as good as new."""
    result = Result(case, gang.label)
    in_vain = 0
    begun = False
    while len(result.recoveries) < repeats and in_vain < GIVE_UP_AFTER:
        if not begun:
            begin(gang, case)
            begun = True
        recovery = measure(gang, case, chance)
        case.mend(gang)
        result.recoveries.append(recovery)
        print(f"{case.name}, {gang.label}: {recovery}", flush=True)
        in_vain = in_vain + 1 if recovery.seconds is None else 0
        if case.fresh or recovery.seconds is None or gang.worn():
            gang.end()
            begun = False
    if begun:
        gang.end()
    result.never = in_vain == GIVE_UP_AFTER
    return result


def begin(gang: SetUp, case: Case) -> None:
    """Make a fresh set-up on which the case can be played.

    Raises:
        TimeoutError: The scheduler never spreads the pods as the case needs it.
    """
    for _ in range(5):
        gang.begin()
        if case.playable(gang):
            return
        gang.end()
    raise TimeoutError(f"{case.name}: no set-up of {gang.label} can be struck")


def main() -> None:
    """Bring a cluster up, measure every case on every gang, print the tables."""
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
            read = notes(options.seed, imports, host.taken())
            print(f"\n{table(results)}\n\n{read}\n\n{parts_table(results)}")
    late = missed(results)
    if late:
        sys.exit(f"goal missed: {', '.join(late)}")


def measure_all(cluster: Cluster, built: Images, options: argparse.Namespace) -> Iterator[Result]:
    """Install the product on a cluster, then every case that is asked for on every gang."""
    install.load_images(cluster, built)
    install.install_chart(cluster, {r"nodeSelector.kubernetes\.io/hostname": OPERATOR_NODE})
    install.make_namespace(cluster, NAMESPACE)
    gangs: list[SetUp] = [Ours(cluster, NAMESPACE)]
    if not options.without_torchrun:
        gangs.append(default_torchrun(cluster, NAMESPACE))
        gangs.append(tuned_torchrun(cluster, NAMESPACE))
    cases = [case for case in CASES if options.only in {None, case.name}]
    counts = {gang.label: options.torchrun_repeats for gang in gangs[1:]}
    repeats = {gangs[0].label: options.repeats} | counts
    yield from play(gangs, cases, repeats, options.seed)


def import_seconds() -> float:
    """How long a new process takes to import torch: most of what a new pod costs."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.monotonic() - began


def play(
    gangs: Sequence[SetUp], cases: Sequence[Case], repeats: Mapping[str, int], seed: int
) -> Iterator[Result]:
    """Every case on every gang, each gang struck by the same dice."""
    for case in cases:
        for gang in gangs:
            dice = random.Random(f"{seed} {case.name}")  # noqa: S311
            yield measure_case(gang, case, repeats[gang.label], dice)


def read_options() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--torchrun-repeats", type=int, default=10)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("DDP_SEED", "0")))
    parser.add_argument("--wheels", type=Path, default=Path("../shared/wheels"))
    parser.add_argument("--only", choices=[case.name for case in CASES], help="one fault alone")
    parser.add_argument("--without-torchrun", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    ending.script(main)
