"""Measure the training loop at one world size. Each rank runs this code."""

import gc
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median

from torch.nn.parallel import DistributedDataParallel

from ddp_trainer.data.sampler import MicroBatch
from ddp_trainer.observe.heartbeats import HeartbeatWriter
from ddp_trainer.parallel.ddp_times import mean_times
from ddp_trainer.ranks import process_group
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.run.opening import RunRequest, open_run
from ddp_trainer.run.run import Run
from ddp_trainer.stop import StopFlag
from ddp_trainer.tools.scaling.minimal import minimal_loop
from ddp_trainer.tools.scaling.point import Communication, ScalingPoint
from ddp_trainer.tools.scaling.stopwatch import Stopwatch
from ddp_trainer.train import loop

SAMPLE_EVERY = 5
"""Interval between two measurements by DDP, in updates."""

Train = Callable[[Run, Stopwatch[MicroBatch]], Communication | None]


@dataclass(frozen=True, slots=True)
class BlockTiming:
    """Measurement of a fixed number of updates by one loop."""

    seconds: float
    waited: float
    """Part of `seconds` in which the loop waited for data."""
    communication: Communication | None


def measure(
    request: RunRequest, ranks: Ranks, stop: StopFlag, *, warmup: int, repeats: int
) -> ScalingPoint:
    """Time the trainer's loop and the minimal loop in turns. The first one alternates.

    Args:
        request: Requested run of one block, which is one timed training. Its `max_steps` include
            the warm-up.
        ranks: The rank of this process.
        stop: Flag that signal handlers set.
        warmup: Number of updates before the timing starts.
        repeats: Number of blocks of each loop.

    Raises:
        InputError: On every rank, if the run can never succeed with these settings.
    """
    config = request.config
    device = process_group.choose_device(config.device, ranks)
    process_group.join(ranks, device, config.parallel.timeout_seconds)
    joined = replace(ranks, launched=False)
    full: list[BlockTiming] = []
    minimal: list[BlockTiming] = []
    turns: list[tuple[list[BlockTiming], Train]] = [(full, _loop)]
    if config.parallel.strategy == "ddp":
        turns.append((minimal, _minimal_loop))
    for _ in range(repeats):
        for blocks, train in turns:
            blocks.append(_block(request, joined, stop, warmup, train))
        turns.reverse()
    updates = (config.max_steps or 0) - warmup
    measured = [block.communication for block in full if block.communication]
    return ScalingPoint(
        world_size=ranks.world_size,
        global_batch=config.global_batch,
        step_ms=1000 * median(block.seconds for block in full) / updates,
        wait_fraction=median(block.waited / block.seconds for block in full),
        minimal_ms=1000 * median(b.seconds for b in minimal) / updates if minimal else None,
        communication=measured[-1] if measured else None,
    )


def _block(
    request: RunRequest, ranks: Ranks, stop: StopFlag, warmup: int, train: Train
) -> BlockTiming:
    run = open_run(request, ranks, stop, HeartbeatWriter(None, ranks, 0))
    run.eval_loader = None
    accumulation = request.config.batch_split(ranks.world_size).accumulation
    watch = Stopwatch(run.train_loader, run.learner.device, warmup * accumulation)
    communication = train(run, watch)
    del run
    gc.collect()  # DDP's reducer must be freed before the process group
    return BlockTiming(watch.seconds, watch.waited, communication)


def _minimal_loop(run: Run, watch: Stopwatch[MicroBatch]) -> None:
    minimal_loop(run, watch)


def _loop(run: Run, watch: Stopwatch[MicroBatch]) -> Communication | None:
    """Run the trainer's own loop and return DDP's measurements, or None without DDP."""
    run.train_loader = watch
    ddp = run.learner.objective
    if not isinstance(ddp, DistributedDataParallel):
        loop(run)
        return None
    ddp._set_ddp_runtime_logging_sample_rate(SAMPLE_EVERY)  # noqa: SLF001 - there is no public name
    loop(run)
    return _communication(ddp)


def _communication(ddp: DistributedDataParallel) -> Communication | None:
    times = mean_times(ddp)
    if times is None:
        return None
    return Communication(
        forward=1000 * times.forward,
        backward=1000 * times.backward,
        reduction=1000 * times.reduction,
        overlap=1000 * times.overlap,
    )
