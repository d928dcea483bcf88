"""Measure how long the ranks take to compare their weights, beside an update.

    torchrun --nproc-per-node 2 -m bench.replicas CASE [--device cuda]

Updates and comparisons alternate, and the medians count. The last line is a row of the table in
`docs/benchmarks/observation.md`: case, compared megabytes, milliseconds of an update, of a
comparison and of its hash alone, and the time of one comparison per `replicas.every_steps` updates
as a share of these updates.
"""

import argparse
import gc
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from ddp_trainer.config.settings import resolve
from ddp_trainer.data.loader import by_update
from ddp_trainer.data.prefetch import on_device
from ddp_trainer.numerics.bit_hash import bit_hash
from ddp_trainer.observe.heartbeats import HeartbeatWriter
from ddp_trainer.ranks import process_group
from ddp_trainer.ranks.collectives import finish_updates, wait_for_all
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.run.opening import RunRequest, open_run
from ddp_trainer.run.replicas import check_replicas, compared
from ddp_trainer.run.run import Run
from ddp_trainer.step import train_step
from ddp_trainer.stop import StopFlag

WARM_UP, ROUNDS = 5, 30
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt": ("ddp_trainer.tasks.gpt:build", {"ema": {"decay": 0.999}}),
    "large-gpt": ("ddp_trainer.tasks.gpt:build", {"task": {"width": 512, "layers": 6}}),
    "miniresnet": ("ddp_trainer.tasks.miniresnet:build", {"optimizer": {"name": "sgd"}}),
}


def measure(case: str, ranks: Ranks, device: str) -> str:
    """Return the row of the table for one case."""
    path, settings = CASES[case]
    quiet = {"log": {"every_steps": 10**9}, "device": device, "max_steps": 10**6}
    request = RunRequest(path, resolve({"global_batch": 32} | quiet | settings))
    run = open_run(request, ranks, StopFlag(), HeartbeatWriter(None, ranks, 0))
    updates = by_update(on_device(run.train_loader, run.learner.device))
    seconds: list[list[float]] = [[], [], []]
    for round_ in range(WARM_UP + ROUNDS):
        batches = next(updates)
        tensors = list(compared(run.learner).values())
        run.replicas.equal_step = -1 - round_  # Otherwise the step counts as compared.
        parts: list[Callable[[], object]] = [
            partial(train_step, run.learner, batches, 0, 1.0),
            partial(check_replicas, run),
            partial(bit_hash, tensors, run.learner.device),
        ]
        for measured, part in zip(seconds, parts, strict=True):
            measured.append(_seconds(run, part))
    update, comparison, own = (1e3 * statistics.median(each[WARM_UP:]) for each in seconds)
    size = sum(tensor.nbytes for tensor in compared(run.learner).values()) / 1e6
    share = 100 * comparison / (run.config.replicas.every_steps * update)
    columns = (case, f"{size:.1f}", *(f"{v:.2f}" for v in (update, comparison, own)))
    return f"| {' | '.join(columns)} | {share:.3f} % |"


def _seconds(run: Run, act: Callable[[], object]) -> float:
    """Return the seconds of a call that all ranks make at the same time."""
    device = run.learner.device
    wait_for_all(device)
    start = time.perf_counter()
    act()
    finish_updates(device)
    return time.perf_counter() - start


def main() -> int:
    """Print the row of one case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    ranks = Ranks.from_environment(os.environ)
    row = measure(options.case, ranks, options.device)
    gc.collect()
    process_group.leave()
    if ranks.is_first:
        print(row, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
