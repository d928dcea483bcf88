"""Compare the step time of the product's loop with a hand-written loop and other frameworks.

    python -m bench.trainer [--seconds 600] [--seed 0] [--out bench-results]

Two ranks on this machine's CPU (gloo), or one per GPU (NCCL). The exit code is 1 if a goal is
missed, and 3 if the machine was too noisy for a verdict.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import torch
from packaging.requirements import Requirement

from bench.host import Host
from bench.loops.findings import (
    CONFIDENCE,
    CONTROL,
    CONTROL_AGAIN,
    GOAL,
    MAX_WIDTH,
    OURS,
    PEER_LIMITS,
    QUANTILES,
    Block,
    Findings,
    State,
    decided,
)
from bench.loops.worker import WORKLOADS
from bench.loops.workloads import TURN
from tests.harness import ending

MAX_WEIGHT_DIFFERENCE = 1e-6
MISSED, NO_VERDICT = 1, 3
EXCLUDED = "Composer"
"""Name and release of a framework that the benchmark never installs."""
EXCLUDED_RELEASE = "mosaicml==0.32.1"
RANKS = 2


def main() -> None:
    """Measure, write and print the results, and check the goals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=600, help="maximum seconds of timing per workload"
    )
    parser.add_argument("--seed", type=int, default=int(os.environ.get("DDP_SEED", "0")))
    parser.add_argument("--out", type=Path, default=Path("bench-results"))
    options = parser.parse_args()
    started, load, host = time.monotonic(), os.getloadavg()[0], Host()
    found = measure(options.seconds, options.seed)
    opening = introduction(options.seed, load, host.steal_fraction())
    text = "\n\n".join((opening, *map(table, found), exclusion_note()))
    day = datetime.now(UTC).date().isoformat()
    options.out.mkdir(parents=True, exist_ok=True)
    page = options.out / f"{day}-trainer.md"
    page.write_text(f"# Training loops, {day}\n\n{text}\n\n{verdicts(found)}\n")
    print(f"{text}\n\nwrote {page} after {time.monotonic() - started:.0f} s\n{verdicts(found)}")
    missed = [sentence for one in found for sentence in misses(one)]
    if missed:
        print("goal missed: " + "; ".join(missed), file=sys.stderr)
        sys.exit(MISSED)
    if undecided := [one.workload for one in found if not decided(one)]:
        print(f"no verdict: the machine was too noisy: {', '.join(undecided)}", file=sys.stderr)
        sys.exit(NO_VERDICT)


def measure(seconds: float, seed: int) -> list[Findings]:
    """Run the ranks of the benchmark and return their findings."""
    ranks = min(RANKS, torch.cuda.device_count()) or RANKS
    with tempfile.TemporaryDirectory() as folder:
        out, log = Path(folder) / "findings.json", Path(folder) / "log"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={ranks}", "-m", "bench.loops.worker"]
        command += [f"--out={out}", f"--seconds={seconds}", f"--seed={seed}"]
        environ = os.environ | {"OMP_NUM_THREADS": "1"}
        with log.open("w") as sink:
            torchrun = subprocess.Popen(command, env=environ, stdout=sink, stderr=sink)
            code = ending.wait_for(torchrun)
        if code:
            sys.exit(f"the ranks failed:\n{log.read_text()[-4000:]}")
        return [_findings(document) for document in json.loads(out.read_text())]


def _findings(document: dict[str, list[dict[str, float]]]) -> Findings:
    blocks = [Block(**block) for block in document["blocks"]]  # type: ignore[arg-type]
    return Findings(**document | {"blocks": blocks})  # type: ignore[arg-type]


def misses(found: Findings) -> list[str]:
    """Return a message for each missed goal.

    Counts have no noise. A time misses its goal only if its whole confidence interval is above the
    limit.
    """
    name, mine = found.workload, found.counts[OURS]
    sentences = [
        f"{name}: the weights of {system} differ by {weight_difference:.1e} from the minimal loop's"
        for system, weight_difference in found.weight_difference.items()
        if weight_difference > MAX_WEIGHT_DIFFERENCE
    ]
    sentences += [
        f"{name}: {mine[what]:g} {what} per step, {number:g} in the minimal loop"
        for what, number in found.counts[CONTROL].items()
        if mine[what] > number
    ]
    if found.fair():
        sentences += [f"{name}: {goal}" for goal in found.goals() if goal.state is State.MISSED]
    return sentences


def verdicts(found: list[Findings]) -> str:
    """Return the product's ratios by workload, and each goal that is not met."""
    lines = []
    for one in found:
        ratios = " and ".join(f"{ratio_text(one, OURS, what)} by {what}" for what in QUANTILES)
        added = f"{1e6 * one.added_seconds():.0f} µs to {1e3 * one.time(CONTROL, GOAL):.1f} ms"
        lines.append(
            f"{one.workload}: the product's loop takes {ratios} of minimal, {one.rounds} rounds;"
            f" it adds {added}"
        )
        open_goals = misses(one)
        if not one.fair():
            open_goals += [f"{one.workload}: no verdict on times: the two minimal loops differ"]
        else:
            open_goals += [f"{one.workload}: {g}" for g in one.goals() if g.state is State.OPEN]
        lines += open_goals or [f"{one.workload}: goals met"]
    return "\n".join(f"- {line}" for line in lines)


def ratio_text(found: Findings, system: str, statistic: str) -> str:
    """Return a system's step time relative to the hand-written loops, as text.

    The second hand-written loop is compared with the first.
    """
    if system == CONTROL:
        return "1"
    others = (CONTROL,) if system == CONTROL_AGAIN else (CONTROL, CONTROL_AGAIN)
    return str(found.ratio(system, statistic, others))


def introduction(seed: int, load: float, steal: float) -> str:
    """Return a text about the conditions of the measurement."""
    cuda = torch.cuda.is_available()
    place = torch.cuda.get_device_name() if cuda else f"CPU, {os.cpu_count()} cores, no GPU"
    order = "One system runs after the other"
    if not cuda:
        order = (
            f"The systems take turns of {TURN} steps; the first one (cold caches) is not counted"
        )
    fabric = PEER_LIMITS["Fabric"]
    long_limit = max(work.minimal_limit or 0 for work in WORKLOADS)
    peers = ", ".join(f"{p.title()} {version(p)}" for p in ("lightning", "accelerate"))
    return f"""\
`make bench-trainer`: milliseconds per step of the product's loop, with its events, heartbeats and
agreements, beside a hand-written DDP loop and other frameworks: same model, weights, data, loss,
optimizer and batch. Ranks of one machine ({place}; {"NCCL" if cuda else "gloo"}), one thread each;
torch {torch.__version__}, {peers}, Python {platform.python_version()}; load average before the run
{load:.2f}, CPU steal {steal:.0%} of the busy time, seed {seed}.

{order}, in rounds with new set-ups.
The minimal loop runs twice. Each round gives two ratios to it: p10 divides the p10 of the steps,
and median is the median ratio of the steps at the same place in the same turn. The ratios below
are geometric means over rounds, with their {CONFIDENCE:.0%} intervals.

Goals by the median: ours is not slower than a framework, except that it may take {fabric} times as
long as Fabric, which reports nothing. In the workload with a long update it takes at most
{long_limit} times as long as minimal; the shorter two state what is added in µs. Weights differ by
at most {MAX_WEIGHT_DIFFERENCE:g} from the minimal loop's; no more collectives, host syncs or aten
ops per steady step than the minimal loop. A goal for times is missed if its whole interval is above
the limit. It is met if the interval is below the limit, or contains it and is at most {MAX_WIDTH:g}
wide. The interval of the two minimal loops must contain 1. Rounds are added until then. A goal that
is still open when the time is up has no verdict."""


def table(found: Findings) -> str:
    """Return the figures of one workload as Markdown."""
    head = (
        f"## {found.workload}\n{found.rounds} rounds. Ratios to minimal, then ratios of"
        " ours to each system.\n\n"
        "| system | p10 ms | median ms | p10 ratio | median ratio | ours to it, p10"
        " | ours to it, median | collectives | host syncs | aten ops | weight difference |\n|"
        + " --- |"
        * 11
    )
    rows = []
    for system, counts in found.counts.items():
        cells = [f"{1000 * found.time(system, what):.2f}" for what in QUANTILES]
        cells += [ratio_text(found, system, what) for what in QUANTILES]
        cells += [
            "-" if system == OURS else str(found.ratio(OURS, what, (system,))) for what in QUANTILES
        ]
        cells += [f"{number:g}" for number in counts.values()]
        rows.append(f"| {system} | {' | '.join(cells)} | {found.weight_difference[system]:.1e} |")
    return "\n".join((head, *rows))


def exclusion_note() -> str:
    """Return why a framework is excluded from the tables, from the metadata of its package."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", "--quiet"]
    command += ["--disable-pip-version-check", "--ignore-installed", "--report=-", EXCLUDED_RELEASE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"{EXCLUDED} is not measured: {EXCLUDED_RELEASE} could not be looked up."
    needs = json.loads(done.stdout)["install"][0]["metadata"]["requires_dist"]
    requirement = next(r for r in map(Requirement, needs) if r.name == "torch")
    fits = requirement.specifier.contains(torch.__version__.partition("+")[0])
    reason = "has no adapter here" if fits else f"needs torch {requirement.specifier}"
    return (
        f"{EXCLUDED} is not measured: {EXCLUDED_RELEASE} {reason}, and this is torch"
        f" {torch.__version__}."
    )


if __name__ == "__main__":
    ending.script(main)
