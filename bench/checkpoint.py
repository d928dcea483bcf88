"""Measure the throughput that saves cost, their memory, and the time of a load.

    python -m bench.checkpoint [--rounds 8] [--updates 20] [--seed 0] [--dir DIR]

Two ranks on this machine's CPU (gloo). One run makes blocks of updates. Each block saves in one
way: not at all, only what survivors need, one checkpoint to the volume, one after each update, one
`torch.save` on rank 0, or one `async_save` of torch.distributed.checkpoint (DCP). The order changes
in each round, and a block ends when its save is on the volume. The time of a block beyond that
without saving is the cost of its save: blocking and background work together. A save each 60 s
loses that time in 60 s. Memory and loads are measured after the rounds. The exit code is 1 if a
goal is missed.
"""

import argparse
import contextlib
import ctypes
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from bench.checkpoint_figures import Figures, missed, table
from bench.host import Host
from bench.node_memory import Peak
from bench.saves import RECORD, Saves, quiet_events
from ddp_trainer.config.settings import resolve
from ddp_trainer.data.loader import by_update
from ddp_trainer.data.prefetch import on_device
from ddp_trainer.observe.heartbeats import HeartbeatWriter
from ddp_trainer.ranks import process_group
from ddp_trainer.ranks.collectives import wait_for_all
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.run.opening import RunRequest, open_run
from ddp_trainer.run.run import Run
from ddp_trainer.stop import StopFlag
from tests.harness import ending

RANKS, MISSED = 2, 1
RESULT = "result.json"
WARM_UP = 5
LOADS = 5
_BEGINS = 1000
_LIBC = ctypes.CDLL(None)
TASK = "ddp_trainer.tasks.gpt:build"
MODEL = {"context": 64, "layers": 4, "width": 384}


def open_bench(folder: Path, seed: int) -> Saves:
    """Open the run that all blocks continue."""
    ranks = Ranks.from_environment(os.environ)
    settings = {
        "task": MODEL,
        "seed": seed,
        "global_batch": 2 * RANKS,
        "max_steps": 10**6,
        "device": "cpu",
        "optimizer": {"name": "adamw", "lr": 0.001},
        "schedule": {"name": "constant"},
        "log": {"every_steps": 10**9},
        "eval_every_steps": 10**9,
        "checkpoint": {"directory": str(folder / "run"), "every_steps": 10**9, "keep": 1},
    }
    records = folder / "records"
    request = RunRequest(TASK, resolve(settings), 1, "bench", records)
    run = open_run(request, ranks, StopFlag(), HeartbeatWriter(None, ranks, 0))
    return Saves(run, by_update(on_device(run.train_loader, run.learner.device)), folder)


def seconds_of(run: Run, act: Callable[[], object]) -> float:
    """Return the seconds of a call that all ranks make, until all have finished it."""
    wait_for_all(run.learner.device)
    start = time.perf_counter()
    act()
    wait_for_all(run.learner.device)
    return time.perf_counter() - start


def measure(folder: Path, options: argparse.Namespace) -> None:
    """Measure on one rank. Rank 0 writes the results to a file."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    host, load = Host(), os.getloadavg()[0]
    with quiet_events():
        saves = open_bench(folder, options.seed)
        figures = _measured(saves, folder, options)
    first = saves.run.ranks.is_first
    place = f"load {load:.1f} before, CPU steal {host.steal_fraction():.0%}, seed {options.seed}"
    del saves
    gc.collect()
    process_group.leave()
    if first:
        lines = _lines(figures, place)
        document = {"lines": lines, "missed": missed(figures)}
        (folder / RESULT).write_text(json.dumps(document))


def _lines(figures: Figures, place: str) -> list[str]:
    """Return the results as text."""
    size, update = figures.state_bytes / 1e6, 1e3 * figures.update_seconds
    own = 1e6 * figures.begin_seconds
    return [
        f"{RANKS} ranks, CPU, torch {torch.__version__}, {place}",
        f"state of {size:.0f} MB, {update:.1f} ms per update",
        f"{len(figures.blocks)} rounds of {figures.updates} updates",
        f"survivors cost {own:.1f} µs per update: {figures.survivors_share():.4%} of it",
        table(figures),
    ]


def _measured(saves: Saves, folder: Path, options: argparse.Namespace) -> Figures:
    """Play all rounds, then measure memory and loads."""
    run = saves.run
    figures = Figures(options.updates, saves.size())
    order = list(saves.ways)
    for _ in range(WARM_UP):
        saves.update()
    figures.state_bytes = saves.size()
    for name in order:
        saves.ways[name](1)  # The first save of each kind imports modules.
    for _ in range(options.rounds):
        gc.collect()
        figures.blocks.append(
            {n: seconds_of(run, partial(saves.ways[n], options.updates)) for n in order}
        )
        order = [*order[1:], order[0]]
    figures.begin_seconds = seconds_of(run, partial(saves.begin_updates, _BEGINS)) / _BEGINS
    for name, load in saves.loads().items():
        load()
        figures.loads[name] = []
    for _ in range(LOADS):
        for name, load in saves.loads().items():
            figures.loads[name].append(seconds_of(run, load))
    _measure_memory(saves, folder, figures)
    return figures


def _measure_memory(saves: Saves, folder: Path, figures: Figures) -> None:
    """Sample the memory of each kind of save, and of a record."""
    acts: dict[str, Callable[[], object]] = {
        name: partial(way, 2) for name, way in saves.ways.items()
    }
    acts[RECORD] = saves.keep
    for name, act in acts.items():
        gc.collect()
        _LIBC.malloc_trim(0)  # Otherwise freed memory of earlier saves hides what this one needs.
        wait_for_all(saves.run.learner.device)
        peak = Peak(os.getppid(), folder / "records")
        with peak if saves.run.ranks.is_first else contextlib.nullcontext():
            seconds = seconds_of(saves.run, act)
        figures.memory[name] = peak.extra
        if name == RECORD:
            figures.record_seconds = seconds


def main() -> None:
    """Start the ranks under torchrun, or run one rank if torchrun started this process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("DDP_SEED", "0")))
    parser.add_argument("--dir", type=Path, help="folder on the volume; by default a temporary one")
    options = parser.parse_args()
    if "RANK" in os.environ:
        measure(options.dir, options)
        return
    with (
        tempfile.TemporaryDirectory(dir=options.dir, prefix="bench-checkpoint-") as volume,
        tempfile.TemporaryDirectory(dir="/dev/shm", prefix="bench-records-") as memory,
    ):
        folder = Path(volume)
        (folder / "records").symlink_to(memory)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={RANKS}", "-m", "bench.checkpoint", f"--dir={folder}"]
        command += [f"--{n}={getattr(options, n)}" for n in ("rounds", "updates", "seed")]
        environ = os.environ | {"OMP_NUM_THREADS": "1"}
        if code := ending.wait_for(subprocess.Popen(command, env=environ)):
            sys.exit(code)
        result = json.loads((folder / RESULT).read_text())
    print("\n".join(result["lines"]))
    for sentence in result["missed"]:
        print(f"goal missed: {sentence}", file=sys.stderr)
    sys.exit(MISSED if result["missed"] else 0)


if __name__ == "__main__":
    ending.script(main)
