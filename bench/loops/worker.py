"""Run one rank of the comparison under torchrun, and write the findings of rank 0 as JSON.

torchrun --nproc-per-node 2 -m bench.loops.worker --out FILE
"""

import argparse
import gc
import json
import logging
import os
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from bench.loops.counts import FIRST, STEPS, count
from bench.loops.findings import (
    CONTROL,
    CONTROL_AGAIN,
    MIN_ROUNDS,
    OURS,
    Block,
    Findings,
    decided,
)
from bench.loops.systems import SYSTEMS, Train, Weights
from bench.loops.turns import Turn, take_turns
from bench.loops.workloads import TURN, Setting, StepTimer, Workload
from ddp_trainer.ranks import process_group
from ddp_trainer.ranks.collectives import broadcast_json
from ddp_trainer.ranks.environment import Ranks

EQUAL_AFTER = 10
"""Number of steps after which the weights of all loops are compared."""

LONG = "characters, long update"
"""Workload whose update takes at least 100 ms on a CPU, as updates on a GPU do in practice."""

WORKLOADS = [
    Workload(
        "digits",
        "bench.loops.workloads:digits",
        {},
        local_batch=32,
        optimizer={"name": "sgd", "lr": 0.001},
    ),
    Workload(
        "characters",
        "bench.loops.workloads:characters",
        {"context": 64, "layers": 2, "width": 64},
        local_batch=8,
        optimizer={"name": "sgd", "lr": 0.001},
    ),
    Workload(
        LONG,
        "bench.loops.workloads:characters",
        {"context": 128, "layers": 4, "width": 128},
        local_batch=8,
        optimizer={"name": "sgd", "lr": 0.001},
        minimal_limit=1.01,
        systems=(CONTROL, CONTROL_AGAIN, OURS),
        warm_up=10,
        timed=40,
    ),
]


def main() -> None:
    """Count operations, compare weights, and time rounds until all goals are decided."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True, help="per workload")
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    for name in ("lightning", "lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    torch.set_num_threads(1)
    launched = Ranks.from_environment(os.environ)
    device = process_group.choose_device("auto", launched)
    process_group.join(launched, device, timeout_seconds=120)
    # The process group exists already, so `launched` must be false for the loops.
    at = Setting(replace(launched, launched=False), device, steps=0, seed=options.seed)
    findings = [measure(work, at, options.seconds) for work in WORKLOADS]
    if launched.is_first:
        document = [vars(f) | {"blocks": [vars(b) for b in f.blocks]} for f in findings]
        options.out.write_text(json.dumps(document))
    gc.collect()
    process_group.leave()


def measure(work: Workload, at: Setting, seconds: float) -> Findings:
    """Measure one workload with every loop."""
    found = Findings(work.name, minimal_limit=work.minimal_limit)
    systems = {name: SYSTEMS[name] for name in work.systems or SYSTEMS}
    weights: dict[str, Weights] = {}
    short, profiled = replace(at, steps=EQUAL_AFTER), replace(at, steps=FIRST + STEPS + 2)
    for name, train in systems.items():
        weights[name] = train(work, short, StepTimer(at.device))
        found.weight_difference[name] = _largest_difference(weights[name], weights["minimal"])
        gc.collect()
        found.counts[name] = count(train, work, profiled)
        _print(
            at,
            f"{work.name}: {name}: {found.counts[name]},"
            f" weights differ by {found.weight_difference[name]:.1e}",
        )
    deadline = time.monotonic() + seconds
    timed = replace(at, steps=_steps(work, at.device))
    order = list(systems)
    while True:
        gc.collect()
        dist.barrier()
        for name, steps in play_round(work, timed, order).items():
            found.blocks.append(Block(found.rounds, name, steps[work.warm_up :]))
        found.rounds += 1
        order = order[1:] + order[:1]
        ended = found.rounds >= MIN_ROUNDS and (decided(found) or time.monotonic() > deadline)
        if broadcast_json(ended, at.device):
            return found


def play_round(
    work: Workload, at: Setting, order: Sequence[str], systems: Mapping[str, Train] = SYSTEMS
) -> dict[str, list[float]]:
    """Train once with each system, and return the seconds of each step.

    The systems take turns of a few steps. On a GPU they run one after another, because its queue
    would mix their kernels.
    """
    timers = {name: StepTimer(at.device) for name in order}
    if at.device.type == "cuda":
        for name in order:
            systems[name](work, at, timers[name])
            gc.collect()
    else:
        in_turns = replace(work, shares=len(order))

        def loop(name: str, turn: Turn) -> None:
            timers[name].pause = turn.pause
            systems[name](in_turns, at, timers[name])

        take_turns(order, loop, f"{at.seed} {order}")
    return {name: timer.steps() for name, timer in timers.items()}


def _steps(work: Workload, device: torch.device) -> int:
    """Return the number of steps of a block: timed steps, the first of each turn, and the last."""
    steps = work.warm_up + work.timed
    return (steps if device.type == "cuda" else steps * TURN // (TURN - 1)) + 1


def _largest_difference(weights: Weights, others: Weights) -> float:
    return max(float((weights[name] - others[name]).abs().max()) for name in others)


def _print(at: Setting, text: str) -> None:
    if at.ranks.is_first:
        print(text, flush=True)


if __name__ == "__main__":
    main()
