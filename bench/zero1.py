"""Compare updates with zero1, with torch's ZeroRedundancyOptimizer and with other strategies.

    python -m bench.zero1 [--rounds 12] [--seed 0]

Two ranks on this machine's CPU (gloo), or one per GPU (NCCL). All loops train the same GPT with the
same fused AdamW and take turns of a few updates. torch's optimizer runs in a hand-written DDP loop:
with its defaults (one broadcast per weight), with its weights in buckets (one broadcast per rank)
and, with NCCL only, overlapped with the backward pass, because torch refuses that with gloo. The
last lines are the ratios of zero1's median update to the others'. The exit code is 1 if zero1 is
slower than a loop with torch's optimizer: the whole confidence interval of their ratio is above 1.
"""

import argparse
import contextlib
import gc
import io
import os
import subprocess
import sys
import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook import hook_with_zero_step
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from bench.host import Host
from bench.loops.findings import CONFIDENCE, Block, Findings
from bench.loops.systems import Train, Weights, minimal, ours
from bench.loops.worker import play_round
from bench.loops.workloads import (
    REPORT_EVERY,
    TURN,
    Setting,
    StepTimer,
    Workload,
    build,
    optimizer_config,
    sharded_loader,
    to_device,
)
from ddp_trainer.ranks import process_group
from ddp_trainer.ranks.environment import Ranks
from tests.harness import ending

RANKS = 2
WARM_UP, TIMED = 8, 24
"""Untimed updates at the start of a block, and timed updates."""
MISSED = 1
ZERO1 = "zero1"
TORCH = "ZeroRedundancyOptimizer"
WORK = Workload(
    "characters",
    "bench.loops.workloads:characters",
    {"context": 64, "layers": 4, "width": 256},
    local_batch=2,
    # torch's overlapped optimizer permits one parameter group only.
    optimizer={"name": "adamw", "lr": 0.001, "weight_decay": 0.0},
)


def with_strategy(settings: Mapping[str, Any]) -> Train:
    """Return a function that runs the product's loop with the given settings of `parallel`."""

    def train(work: Workload, at: Setting, timer: StepTimer) -> Weights:
        return ours(replace(work, parallel=dict(settings)), at, timer)

    return train


def with_torch_zero(
    work: Workload, at: Setting, timer: StepTimer, *, buckets: bool = False, overlap: bool = False
) -> Weights:
    """Run a hand-written DDP loop whose optimizer is torch's ZeroRedundancyOptimizer."""
    task = build(work, at)
    task.train_data.timer = timer
    model = task.model.to(at.device)
    device_ids = [at.device] if at.device.type == "cuda" else None
    ddp = DistributedDataParallel(model, device_ids=device_ids, gradient_as_bucket_view=True)
    config = optimizer_config(work)
    optimizer = ZeroRedundancyOptimizer(
        ddp.parameters(),
        torch.optim.AdamW,
        parameters_as_bucket_view=buckets,
        overlap_with_ddp=overlap,
        lr=config.lr,
        betas=config.betas,
        weight_decay=config.weight_decay,
        # The overlapped optimizer is a functional one, which has no fused kernel.
        **({} if overlap else {"fused": True}),
    )
    if overlap:
        hook = hook_with_zero_step(allreduce_hook, ddp, optimizer)
        ddp.register_comm_hook(None, hook)
    for step, cold in enumerate(sharded_loader(task, work, at)):
        weighted = task.loss(ddp, to_device(cold, at.device))
        loss = weighted.sum / weighted.count
        loss.backward()
        if not overlap:
            optimizer.step()
        optimizer.zero_grad()
        if step % REPORT_EVERY == 0:
            loss.item()
    return {name: value.detach().cpu() for name, value in model.state_dict().items()}


def systems(device: torch.device) -> dict[str, Train]:
    """Return the compared training loops by name."""
    found: dict[str, Train] = {
        ZERO1: with_strategy({"strategy": "zero1"}),
        TORCH: with_torch_zero,
        f"{TORCH} in buckets": partial(with_torch_zero, buckets=True),
        "ddp": with_strategy({}),
        "ddp by hand": minimal,
        "fsdp2": with_strategy({"strategy": "fsdp2"}),
    }
    if device.type == "cuda":
        found[f"{TORCH} overlapped"] = partial(with_torch_zero, overlap=True)
    return found


def measure(rounds: int, seed: int) -> None:
    """Measure all loops on one rank, and print the result on rank 0."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    launched = Ranks.from_environment(os.environ)
    device = process_group.choose_device("auto", launched)
    process_group.join(launched, device, timeout_seconds=120)
    steps = (WARM_UP + TIMED) * TURN // (TURN - 1) + 1
    # The process group exists already, so `launched` must be false for the loops.
    at = Setting(replace(launched, launched=False), device, steps=steps, seed=seed)
    loops, host, load = systems(device), Host(), os.getloadavg()[0]
    found, order = Findings(WORK.name), list(loops)
    for number in range(rounds):
        gc.collect()
        dist.barrier()
        with contextlib.redirect_stdout(io.StringIO()):  # The product's loop prints its events.
            played = play_round(WORK, at, order, loops)
        for name, seconds in played.items():
            found.blocks.append(Block(number, name, seconds[WARM_UP:]))
        found.rounds += 1
        order = order[1:] + order[:1]
    gc.collect()
    process_group.leave()
    if launched.is_first:
        place = f"load {load:.1f} before, CPU steal {host.steal_fraction():.0%}, seed {seed}"
        print(f"{launched.world_size} ranks, {device}, torch {torch.__version__}, {place}")
        report(found, list(loops))


def report(found: Findings, names: list[str]) -> None:
    """Print the median times, then the ratio of zero1's time to each other loop's.

    Raises:
        SystemExit: With code 1 if zero1 is slower than torch's optimizer.
    """
    for name in names:
        print(f"{name}: {1000 * found.time(name, 'median'):.2f} ms per update")
    missed = []
    for name in names[1:]:
        ratio = found.ratio(ZERO1, "median", (name,))
        print(f"{ZERO1} takes {ratio} of {name}, {CONFIDENCE:.0%} interval, {found.rounds} rounds")
        if name.startswith(TORCH) and ratio.low > 1:
            missed.append(name)
    if missed:
        print(f"goal missed: {ZERO1} is slower than {' and '.join(missed)}", file=sys.stderr)
        sys.exit(MISSED)


def main() -> None:
    """Start the ranks under torchrun, or run one rank if torchrun started this process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("DDP_SEED", "0")))
    options = parser.parse_args()
    if "RANK" in os.environ:
        measure(options.rounds, options.seed)
        return
    ranks = min(RANKS, torch.cuda.device_count()) or RANKS
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={ranks}", "-m", "bench.zero1"]
    command += [f"--rounds={options.rounds}", f"--seed={options.seed}"]
    environ = os.environ | {"OMP_NUM_THREADS": "1"}
    sys.exit(ending.wait_for(subprocess.Popen(command, env=environ)))


if __name__ == "__main__":
    ending.script(main)
