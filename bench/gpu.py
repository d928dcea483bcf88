"""Measure ResNet-50 and GPT-2 in bf16 on one GPU, and compare with a hand-written loop.

    python -m bench.gpu [--seed 0] [--out bench-results] [--rounds 3] [--tiny]

The exit code is 1 if a goal is missed and 4 without a CUDA device. `--tiny` runs small models on
the CPU to test the benchmark itself; its figures mean nothing.
"""

import argparse
import gc
import math
import os
import socket
import statistics
import sys
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from bench.loops.systems import Train, Weights, minimal, ours
from bench.loops.workloads import Setting, StepTimer, Workload, build
from ddp_trainer.ranks import process_group
from ddp_trainer.ranks.environment import Ranks

NO_DEVICE = 4
MAX_RATIO = 1.02
MAX_DRIFT = 0.02
"""Maximum distance between the final weights of the product's loop and of the hand-written loop, as
a share of the distance that the weights of the latter moved."""
MAX_OF_FLOOR = 1.2
"""Maximum of the same distance as a multiple of the distance between two runs of the hand-written
loop. The larger limit applies, because sums on a GPU have no fixed order and a deep network
amplifies their rounding."""
WARM_UP, TIMED = 20, 40
SYNC_FREE_FROM, SYNC_FREE_STEPS = 15, 50
"""First step and number of steps in which a host sync is an error. The ranks exchange nothing in
these steps."""
SYSTEMS: dict[str, Train] = {"minimal": minimal, "ours": ours, "minimal again": minimal}
ALONE = Ranks(rank=0, world_size=1, local_rank=0, local_world_size=1, launched=True)


@dataclass
class Case:
    """A workload with its unit of throughput and its measured results."""

    work: Workload
    unit: str
    per_sample: int
    """Units in one sample."""
    steps: dict[str, list[float]] = field(default_factory=dict)
    """Median seconds per step of each block, by system."""
    memory: dict[str, float] = field(default_factory=dict)
    """Peak memory in GiB, by system."""
    drift: float | None = None
    floor: float | None = None
    """Distance between the weights of two runs of the hand-written loop, which differ because sums
    on a GPU have no fixed order."""
    syncs: str | None = None
    """`none` or the message of the first host sync; None on a CPU, which has no host syncs."""

    def rate(self, system: str) -> float:
        """Return the throughput of a system in units per second."""
        step = statistics.median(self.steps[system])
        return self.work.local_batch * self.per_sample / step

    def ratio(self, system: str) -> float:
        """Return a system's throughput relative to the hand-written loop: median over rounds."""
        both = zip(self.steps["minimal"], self.steps["minimal again"], strict=True)
        mine = zip(self.steps[system], both, strict=True)
        return statistics.median(time / statistics.fmean(pair) for time, pair in mine)

    def misses(self, *, tiny: bool) -> list[str]:
        """Return the missed goals; with `tiny` only the distance between weights has a goal."""
        name = self.work.name
        found = []
        goal = max(MAX_DRIFT, MAX_OF_FLOOR * (self.floor or 0.0))
        if self.drift is None or self.drift > goal:
            found.append(f"{name}: weight drift is {self.drift}, goal {goal:.3f}")
        if tiny:
            return found
        if self.syncs != "none":
            found.append(f"{name}: host syncs: {self.syncs}")
        if self.ratio("ours") > MAX_RATIO:
            found.append(f"{name}: ratio to minimal is {self.ratio('ours'):.3f}, goal {MAX_RATIO}")
        return found


def cases(*, tiny: bool) -> list[Case]:
    """Return the workloads; with `tiny`, return models that are small enough for a CPU."""
    images, tokens = (4, 8) if tiny else (256, 32)
    image_sizes = {"depths": [1, 1], "width": 8, "pixels": 32, "classes": 10} if tiny else {}
    token_sizes: dict[str, Any] = {"context": 16, "layers": 1, "heads": 2, "width": 16}
    token_sizes = token_sizes | {"symbols": 64} if tiny else {}
    resnet = _workload("ResNet-50", "images", images, image_sizes, {"name": "sgd", "lr": 0.01})
    gpt = _workload("GPT-2 124M", "tokens", tokens, token_sizes, {"name": "adamw", "lr": 3e-4})
    return [Case(resnet, "images", 1), Case(gpt, "tokens", token_sizes.get("context", 1024))]


def _workload(
    name: str, task: str, batch: int, sizes: dict[str, Any], optimizer: dict[str, Any]
) -> Workload:
    settings = {"batch": batch, **sizes}
    return Workload(name, f"bench.loops.large:{task}", settings, batch, optimizer, precision="bf16")


def measure(case: Case, at: Setting, report: "ReportPage", rounds: int) -> None:
    """Measure one case, and write the page again after every part."""
    case.drift, case.floor = _drift(case.work, replace(at, steps=10))
    case.syncs = _syncs(case.work, replace(at, steps=SYNC_FREE_FROM + SYNC_FREE_STEPS + 5))
    report.write()
    names = list(SYSTEMS)
    for _ in range(rounds):
        for name in names:
            timer = StepTimer(at.device)
            _free(at.device)
            SYSTEMS[name](case.work, replace(at, steps=WARM_UP + TIMED + 1), timer)
            case.steps.setdefault(name, []).append(statistics.median(timer.steps()[WARM_UP:]))
            if at.device.type == "cuda":
                case.memory[name] = torch.cuda.max_memory_allocated() / 2**30
        names.reverse()
        report.write()


def _drift(work: Workload, at: Setting) -> tuple[float, float]:
    """Return how far the product's weights, and those of a second hand-written loop, differ."""
    start = {name: value.clone() for name, value in build(work, at).model.state_dict().items()}
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
        loops = (minimal, ours, minimal)
        by_hand, product, again = (train(work, at, StepTimer(at.device)) for train in loops)
    moved = _distance(by_hand, start)
    return _distance(product, by_hand) / moved, _distance(again, by_hand) / moved


def _distance(weights: Weights, others: Weights) -> float:
    squares = ((weights[n].double() - others[n].double()).square().sum() for n in weights)
    return math.sqrt(float(sum(squares)))


def _syncs(work: Workload, at: Setting) -> str | None:
    """Forbid host syncs in the loop's steady steps. Return `none` or the first error."""
    if at.device.type != "cuda":
        return None
    timer = StepTimer(
        at.device,
        {
            SYNC_FREE_FROM: lambda: torch.cuda.set_sync_debug_mode("error"),
            SYNC_FREE_FROM + SYNC_FREE_STEPS: lambda: torch.cuda.set_sync_debug_mode("default"),
        },
    )
    try:
        # No reports and no agreements in these steps, because both need a host sync by design.
        ours(replace(work, report_every=10_000, shares=2_000), at, timer)
    except RuntimeError as error:
        return str(error).splitlines()[0]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return "none"


def _free(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


class ReportPage:
    """The results page, which is written to disk after each result."""

    def __init__(self, path: Path, known: list[Case], place: str, rounds: int) -> None:
        self._path = path
        self._cases = known
        self._place = place
        self._rounds = rounds

    def text(self) -> str:
        """Return the table as Markdown."""
        head = ("| model | loop | per second | ms/step | ratio | peak GiB | host syncs | drift |",)
        rows = [*head, "|" + " --- |" * 8]
        for case in self._cases:
            if set(case.steps) != set(SYSTEMS) or len(set(map(len, case.steps.values()))) > 1:
                continue
            for name in SYSTEMS:
                step = 1000 * statistics.median(case.steps[name])
                drift = {"ours": case.drift, "minimal again": case.floor}.get(name)
                syncs = (case.syncs or "-") if name == "ours" else ""
                rows.append(
                    f"| {case.work.name}, batch {case.work.local_batch} | {name}"
                    f" | {case.rate(name):.0f} {case.unit} | {step:.2f} | {case.ratio(name):.3f}"
                    f" | {case.memory.get(name, 0.0):.1f} | {syncs}"
                    f" | {'' if drift is None else f'{drift:.1e}'} |"
                )
        return "\n".join(rows)

    def write(self) -> None:
        """Write the page to disk."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        conditions = (
            f"`make bench-gpu` on {self._place}, torch {torch.__version__}: bf16, a world of one"
            f" rank under DDP, random batches copied from pinned host memory. Medians"
            f" of {TIMED} steps, {self._rounds} rounds."
            f" Host syncs: in {SYNC_FREE_STEPS} steady steps."
            " Drift: distance between the weights and the minimal loop's after ten steps, divided"
            " by the distance that the minimal loop's moved, with cuDNN's deterministic algorithms."
            " Goals: ratio"
            f" {MAX_RATIO}, no host sync, drift {MAX_DRIFT} or {MAX_OF_FLOOR} times that of a"
            " second minimal loop."
        )
        self._path.write_text(f"# Large models on a GPU\n\n{conditions}\n\n{self.text()}\n")


def main() -> None:
    """Measure, write the page and check the goals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("DDP_SEED", "0")))
    parser.add_argument("--out", type=Path, default=Path("bench-results"))
    parser.add_argument("--rounds", type=int, default=3, help="repeats of each loop")
    parser.add_argument("--tiny", action="store_true", help="small models on the CPU")
    options = parser.parse_args()
    if not options.tiny and not torch.cuda.is_available():
        print("bench-gpu: this machine has no CUDA device", file=sys.stderr)
        sys.exit(NO_DEVICE)
    device = torch.device("cpu") if options.tiny else torch.device("cuda", 0)
    os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=_free_port())
    process_group.join(ALONE, device, timeout_seconds=120)
    at = Setting(replace(ALONE, launched=False), device, steps=0, seed=options.seed)
    known = cases(tiny=options.tiny)
    place = "CPU, tiny" if options.tiny else torch.cuda.get_device_name()
    day = datetime.now(UTC).date().isoformat()
    options.out.mkdir(parents=True, exist_ok=True)
    page = ReportPage(options.out / f"{day}-gpu.md", known, place, options.rounds)
    torch.backends.cudnn.benchmark = True
    for case in known:
        measure(case, at, page, options.rounds)
    gc.collect()
    process_group.leave()
    print(page.text())
    if missed := [sentence for case in known for sentence in case.misses(tiny=options.tiny)]:
        sys.exit("goal missed: " + "; ".join(missed))


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


if __name__ == "__main__":
    main()
