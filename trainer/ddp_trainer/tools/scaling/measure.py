"""One rank's part in measuring one world size."""

import gc
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median

from torch.nn.parallel import DistributedDataParallel

from ddp_trainer.data.sampler import Micro
from ddp_trainer.observe.beats import BeatWriter
from ddp_trainer.ranks import process_group
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.run.opening import Order, open_run
from ddp_trainer.run.run import Run
from ddp_trainer.stop import StopFlag
from ddp_trainer.tools.scaling.minimal import minimal_loop
from ddp_trainer.tools.scaling.point import Communication, Point
from ddp_trainer.tools.scaling.stopwatch import Stopwatch
from ddp_trainer.train import loop

SAMPLE_EVERY = 5
"""DDP notes its times in one of so many updates."""
NANOSECONDS = 1e6
"""In a millisecond."""

Train = Callable[[Run, Stopwatch[Micro]], Communication | None]


@dataclass(frozen=True, slots=True)
class Block:
    """Some updates of one loop."""

    seconds: float
    waited: float
    """Seconds in which the loop waited for data."""
    communication: Communication | None


def measure(order: Order, ranks: Ranks, stop: StopFlag, *, warmup: int, repeats: int) -> Point:
    """Times the loop and the minimal loop in turn, each first in every other repeat.

    Args:
        order: Its `max_steps` are the updates of a block, the warm-up included.
        ranks: This process's place.
        stop: Raised by signals.
        warmup: Updates that are not timed.
        repeats: Blocks of each loop.

    Raises:
        InputError: On every rank, if the run can never succeed as it was asked for.
    """
    config = order.config
    device = process_group.choose_device(config.device, ranks)
    process_group.join(ranks, device, config.parallel.timeout_seconds)
    joined = replace(ranks, launched=False)
    ours: list[Block] = []
    minimal: list[Block] = []
    turns: list[tuple[list[Block], Train]] = [(ours, _loop)]
    if config.parallel.strategy == "ddp":
        turns.append((minimal, _minimal_loop))
    for _ in range(repeats):
        for blocks, train in turns:
            blocks.append(_block(order, joined, stop, warmup, train))
        turns.reverse()
    updates = (config.max_steps or 0) - warmup
    noted = [block.communication for block in ours if block.communication]
    return Point(
        world_size=ranks.world_size,
        global_batch=config.global_batch,
        step_ms=1000 * median(block.seconds for block in ours) / updates,
        wait_fraction=median(block.waited / block.seconds for block in ours),
        minimal_ms=1000 * median(b.seconds for b in minimal) / updates if minimal else None,
        communication=noted[-1] if noted else None,
    )


def _block(order: Order, ranks: Ranks, stop: StopFlag, warmup: int, train: Train) -> Block:
    run = open_run(order, ranks, stop, BeatWriter(None, ranks, 0))
    run.eval_loader = None
    accumulation = order.config.batch_split(ranks.world_size).accumulation
    watch = Stopwatch(run.train_loader, run.learner.device, warmup * accumulation)
    communication = train(run, watch)
    del run
    gc.collect()  # DDP's reducer must go before the process group does
    return Block(watch.seconds, watch.waited, communication)


def _minimal_loop(run: Run, watch: Stopwatch[Micro]) -> None:
    minimal_loop(run, watch)


def _loop(run: Run, watch: Stopwatch[Micro]) -> Communication | None:
    """The product's loop; what DDP noted, if there is DDP."""
    run.train_loader = watch
    ddp = run.learner.objective
    if not isinstance(ddp, DistributedDataParallel):
        loop(run)
        return None
    ddp._set_ddp_runtime_logging_sample_rate(SAMPLE_EVERY)  # noqa: SLF001 - it has no public name
    loop(run)
    return _communication(ddp)


def _communication(ddp: DistributedDataParallel) -> Communication:
    noted = ddp._get_ddp_logging_data()  # noqa: SLF001 - as above
    return Communication(
        forward=noted["avg_forward_compute_time"] / NANOSECONDS,
        backward=noted["avg_backward_compute_time"] / NANOSECONDS,
        reduction=noted["avg_backward_comm_time"] / NANOSECONDS,
        overlap=noted["avg_backward_compute_comm_overlap_time"] / NANOSECONDS,
    )
