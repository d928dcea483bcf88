"""What the product's loop costs: time per step beside a hand-written loop and the frameworks.

    python -m tests.benchmarks.trainer [--seconds 600] [--seed 0] [--out docs/benchmarks]

Two ranks on this machine's CPU (gloo), or one per GPU (NCCL). Ends non-zero when a goal is missed
(1), or when the machine was too busy for a verdict (3).
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

from tests.benchmarks.host import Host
from tests.benchmarks.loops.findings import (
    CONFIDENCE,
    CONTROL,
    CONTROL_AGAIN,
    MAX_RATIO,
    OURS,
    QUANTILES,
    Block,
    Findings,
    State,
    decided,
)
from tests.benchmarks.loops.workloads import TURN
from tests.harness import ending

MAX_APART = 1e-6
MISSED, NO_VERDICT = 1, 3
NEVER = "Composer"
"""Of the frameworks the one that is not installed, with its release."""
NEVER_RELEASE = "mosaicml==0.32.1"
RANKS = 2


def main() -> None:
    """Measure, write the table, print it, check the goals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=600, help="of timing at most, per workload"
    )
    parser.add_argument("--seed", type=int, default=int(os.environ.get("DDP_SEED", "0")))
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    options = parser.parse_args()
    began, load, host = time.monotonic(), os.getloadavg()[0], Host()
    found = measure(options.seconds, options.seed)
    opening = introduction(options.seed, load, host.taken())
    text = "\n\n".join((opening, *map(table, found), absent()))
    day = datetime.now(UTC).date().isoformat()
    options.out.mkdir(parents=True, exist_ok=True)
    page = options.out / f"{day}-trainer.md"
    page.write_text(f"# Training loops, {day}\n\n{text}\n\n{verdicts(found)}\n")
    print(f"{text}\n\nwrote {page} after {time.monotonic() - began:.0f} s\n{verdicts(found)}")
    missed = [sentence for one in found for sentence in misses(one)]
    if missed:
        print("goal missed: " + "; ".join(missed), file=sys.stderr)
        sys.exit(MISSED)
    if undecided := [one.workload for one in found if not decided(one)]:
        print(f"no verdict: too noisy a machine for {', '.join(undecided)}", file=sys.stderr)
        sys.exit(NO_VERDICT)


def measure(seconds: float, seed: int) -> list[Findings]:
    """Run the ranks."""
    ranks = min(RANKS, torch.cuda.device_count()) or RANKS
    with tempfile.TemporaryDirectory() as folder:
        out, log = Path(folder) / "findings.json", Path(folder) / "log"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={ranks}", "-m", "tests.benchmarks.loops.worker"]
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
    """Goals that are not met, in a sentence each.

    What is counted has no noise. A time is over its goal only if its whole interval is.
    """
    name, mine = found.workload, found.counts[OURS]
    sentences = [
        f"{name}: {system}'s weights are {apart:.1e} apart from the minimal loop's"
        for system, apart in found.apart.items()
        if apart > MAX_APART
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
    """The figures of ours per workload, and each goal that is not met."""
    lines = []
    for one in found:
        ratios = " and ".join(f"{told(one, OURS, what)} by {what}" for what in QUANTILES)
        lines.append(f"{one.workload}: ours is {ratios} of minimal, {one.rounds} rounds")
        said = misses(one)
        if not one.fair():
            said += [f"{one.workload}: no verdict on times: the two minimal loops differ"]
        else:
            said += [f"{one.workload}: {g}" for g in one.goals() if g.state is State.OPEN]
        lines += said or [f"{one.workload}: goals met"]
    return "\n".join(f"- {line}" for line in lines)


def told(found: Findings, system: str, statistic: str) -> str:
    """A system's ratio to the minimal loops; of these, the second one's to the first."""
    if system == CONTROL:
        return "1"
    others = (CONTROL,) if system == CONTROL_AGAIN else (CONTROL, CONTROL_AGAIN)
    return str(found.ratio(system, statistic, others))


def introduction(seed: int, load: float, taken: float) -> str:
    """What was done, and where."""
    cuda = torch.cuda.is_available()
    place = torch.cuda.get_device_name() if cuda else f"CPU, {os.cpu_count()} cores, no GPU"
    order = "One system runs after the other"
    if not cuda:
        order = (
            f"The systems take turns of {TURN} steps, whose first (caches are cold) is not counted"
        )
    peers = ", ".join(f"{p.title()} {version(p)}" for p in ("lightning", "accelerate"))
    return f"""\
`make bench-trainer`: milliseconds per step of the product's loop, with its events, beats and
agreements, beside a hand-written DDP loop and other frameworks: same model, weights, data, loss,
optimizer and batch. Ranks of one machine ({place}; {"NCCL" if cuda else "gloo"}), one thread each;
torch {torch.__version__}, {peers}, Python {platform.python_version()}; load average before the run
{load:.2f}, {taken:.0%} of the cores' busy time taken by the host during it, seed {seed}.

{order}, in rounds with fresh set-ups.
Each round gives a ratio to the minimal loop, which is there twice: that of the p10 of the steps;
by median, the median of the ratios of the steps of the same place in the same turn. A ratio below
is the geometric mean of the rounds', with its {CONFIDENCE:.0%} interval.

Goals: ours at most {MAX_RATIO} of minimal and faster than each of the frameworks, by p10 and by
median; weights at most {MAX_APART:g} apart from the minimal loop's; no more collectives, host syncs
or aten ops per steady step than the minimal loop. A time's goal is met or missed when the whole
interval is on one side of its limit, and the interval between the two minimal loops holds 1; until
then rounds are added. What is open when the time is up has no verdict."""


def table(found: Findings) -> str:
    """The figures of one workload, as Markdown."""
    head = (
        f"## {found.workload}\n{found.rounds} rounds. Ratios to minimal, then of ours to each.\n\n"
        "| system | p10 ms | median ms | p10 ratio | median ratio | ours to it, p10"
        " | ours to it, median | collectives | host syncs | aten ops | weights apart |\n|"
        + " --- |"
        * 11
    )
    rows = []
    for system, counts in found.counts.items():
        cells = [f"{1000 * found.time(system, what):.2f}" for what in QUANTILES]
        cells += [told(found, system, what) for what in QUANTILES]
        cells += [
            "-" if system == OURS else str(found.ratio(OURS, what, (system,))) for what in QUANTILES
        ]
        cells += [f"{number:g}" for number in counts.values()]
        rows.append(f"| {system} | {' | '.join(cells)} | {found.apart[system]:.1e} |")
    return "\n".join((head, *rows))


def absent() -> str:
    """Why a framework is not in the tables, by its own package's word."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", "--quiet"]
    command += ["--disable-pip-version-check", "--ignore-installed", "--report=-", NEVER_RELEASE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"{NEVER} is not measured: {NEVER_RELEASE} could not be looked up."
    needs = json.loads(done.stdout)["install"][0]["metadata"]["requires_dist"]
    asked = next(r for r in map(Requirement, needs) if r.name == "torch")
    fits = asked.specifier.contains(torch.__version__.partition("+")[0])
    reason = "has no adapter here" if fits else f"needs torch {asked.specifier}"
    return f"{NEVER} is not measured: {NEVER_RELEASE} {reason}; here is torch {torch.__version__}."


if __name__ == "__main__":
    ending.script(main)
