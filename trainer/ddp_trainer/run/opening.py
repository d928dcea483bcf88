"""Opening a run: build the task, join the other ranks, resume."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ddp_trainer.checkpoint.initial import Fit, load_initial
from ddp_trainer.checkpoint.manager import CheckpointManager
from ddp_trainer.checkpoint.snapshot import Snapshot
from ddp_trainer.config import BatchSplit, RunConfig
from ddp_trainer.data.budget import Budget, share_out
from ddp_trainer.data.fingerprint import fingerprint
from ddp_trainer.data.loader import Loading, Sampler, make_sampler
from ddp_trainer.data.prefetch import to_device
from ddp_trainer.data.sampler import Taker
from ddp_trainer.data.stream import StreamSampler
from ddp_trainer.errors import InputError
from ddp_trainer.learner import Learner, build_learner, footprint
from ddp_trainer.numerics.guard import Verdicts
from ddp_trainer.numerics.precision import set_arithmetic
from ddp_trainer.observe.beats import BeatWriter
from ddp_trainer.observe.events import EventLog
from ddp_trainer.observe.phases import Phases
from ddp_trainer.observe.report import Reporter
from ddp_trainer.observe.starvation import DataWatch
from ddp_trainer.observe.trace import Trace
from ddp_trainer.parallel.memory import advise
from ddp_trainer.ranks import process_group, timeouts
from ddp_trainer.ranks.agreement import Agreement
from ddp_trainer.ranks.collectives import on_first_rank
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.ranks.preflight import Facts, build_alike, facts_of
from ddp_trainer.ranks.topology import Place, disorder, rank_map
from ddp_trainer.run.building import build_task, document_of
from ddp_trainer.run.run import Position, Run
from ddp_trainer.run.state import restore
from ddp_trainer.step import rehearse
from ddp_trainer.stop import StopFlag
from ddp_trainer.task import HasOptimizer, Task, peak_rate
from ddp_wire.contract import CheckpointInfo, RankPhase
from ddp_wire.machine import cpu_count

COMMUTATIVE_RANKS = 2
"""Up to so many numbers have the same sum in any order."""


@dataclass(frozen=True, slots=True)
class Order:
    """What was asked for."""

    task: str
    """Import path `package.module:function`."""
    config: RunConfig
    attempt: int | None = None
    """Number of this attempt; the next free one when not stated."""
    job: str = ""
    """Whose attempt it is: the job's uid."""


def open_run(order: Order, ranks: Ranks, stop: StopFlag, beats: BeatWriter) -> Run:
    """Opens a run, at the beginning or at its newest whole checkpoint.

    Args:
        order: What to train.
        ranks: This process's place.
        stop: Raised by signals.
        beats: Where this rank shows that it lives.

    Raises:
        InputError: On every rank, if the run can never succeed as it was asked for.
    """
    device = process_group.choose_device(order.config.device, ranks)
    set_arithmetic(order.config)
    split = order.config.batch_split(ranks.world_size)
    timeouts.prepare(order.config, os.environ, nccl=device.type == "cuda")
    route = process_group.join(ranks, device, order.config.parallel.first_timeout)

    def built() -> tuple[tuple[Task, RunConfig], Facts]:
        task, config = build_task(order.task, order.config, ranks, device)
        both = (task.train_data, task.eval_data) if ranks.world_size > 1 else ()
        data = "; ".join(map(fingerprint, both))
        place = Place.from_environment(os.environ)
        return (task, config), facts_of(device, document_of(order.task, config), data, place)

    mixed = order.config.parallel.allow_mixed
    (task, config), everyone, warnings = build_alike(built, ranks, device, allow_mixed=mixed)
    document = document_of(order.task, config)
    beats.phase(RankPhase.TRAINING)
    checkpoints = CheckpointManager(config.checkpoint)
    opened = on_first_rank(lambda: checkpoints.open(order.attempt, document, order.job), device)
    saved = checkpoints.receive(device) if opened["resume"] else None
    sampler = make_sampler(task, config)
    position = _position(saved, sampler) if saved else Position()
    total = _total_steps(sampler, position, config)
    taker = Taker(ranks.rank, ranks.world_size, split.micro_batch)
    budget = _budget(config, ranks)
    loading = Loading(task, config.data, budget, device)
    begun_with = None
    if saved is None and config.init_from:
        strict = config.init_strict
        begun_with = load_initial(task.model, config.init_from, device, strict=strict)
    learner = build_learner(task, config, ranks, device)
    phases = Phases(device, config.log.every_steps, position.step)
    learner.trace = Trace(_requests(config, ranks), phases)
    if saved:
        restore(learner, saved, keep_groups=not isinstance(task, HasOptimizer))
    if position.step < total and _needs_rehearsal(learner, ranks):
        rehearse(learner, to_device(loading.first(sampler, taker, position.samples), device))
    report = _reporter(task, config, ranks, opened["attempt"], beats, total_steps=total)
    run = Run(
        config=config,
        task_path=order.task,
        ranks=ranks,
        attempt=opened["attempt"],
        task=task,
        learner=learner,
        sampler=sampler,
        train_loader=loading.training(sampler, taker, position.samples, total - position.step),
        eval_loader=loading.evaluation(taker),
        checkpoints=checkpoints,
        agreement=_agreement(position, config, ranks),
        stop=stop,
        report=report,
        position=position,
        total_steps=total,
        reported_step=position.step,
        verdicts=Verdicts(
            config.nonfinite,
            learner.guard.policy,
            saved.state if saved else {},
        ),
        data_watch=DataWatch(report.data_wait, ranks.rank, ranks.world_size),
    )
    places = [facts.place for facts in everyone]
    _say_opened(run, opened, split, route, places)
    for sentence in filter(None, [*warnings, route.warning, disorder(places), budget.warning]):
        run.report.warned(sentence)
    _say_advice(run, begun_with)
    return run


def _requests(config: RunConfig, ranks: Ranks) -> Path | None:
    """Where this rank looks for requests of profiles, if it does."""
    directory = config.checkpoint.directory
    return Path(directory) if directory and ranks.is_first else None


def _needs_rehearsal(learner: Learner, ranks: Ranks) -> bool:
    """Whether an attempt's first update would differ in its bits, or in its buckets' state.

    A static graph is found in the first pass, which must reduce: torch fails on one that only
    accumulates.
    """
    if not isinstance(learner.objective, DistributedDataParallel):
        return False
    static = learner.strategy.config.static_graph
    return static or ranks.world_size > COMMUTATIVE_RANKS or learner.compression is not None


def _position(saved: Snapshot, sampler: Sampler) -> Position:
    """Where a checkpoint was taken.

    Raises:
        InputError: If its position has no meaning for this data or this order.
    """
    state = saved.state
    if state["data_size"] != sampler.size:
        raise InputError(
            f"checkpoint: it was written with {state['data_size']} training samples, now there are"
            f" {sampler.size}: its position in the data has no meaning"
        )
    if state["config"]["seed"] != sampler.seed:
        raise InputError(
            f"config: seed must stay {state['config']['seed']} in a run that is resumed, because"
            " the order of the samples depends on it"
        )
    return Position(state["step"], state["samples"], state["seconds"])


def _total_steps(sampler: Sampler, position: Position, config: RunConfig) -> int:
    """Updates of the whole run, over all attempts."""
    if config.max_steps is not None and config.epochs is None:
        return config.max_steps
    if isinstance(sampler, StreamSampler):
        raise TypeError("a stream has no epochs to count")
    end = sampler.size * (config.epochs or 1)
    left = sampler.updates_between(position.samples, end) if position.samples < end else 0
    total = position.step + left
    return total if config.max_steps is None else min(total, config.max_steps)


def _budget(config: RunConfig, ranks: Ranks) -> Budget:
    """This rank's threads, which are set here, and its worker processes."""
    budget = share_out(cpu_count(), ranks.local_world_size, config.data.workers)
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(budget.threads)
    return budget


def _agreement(position: Position, config: RunConfig, ranks: Ranks) -> Agreement:
    return Agreement(
        step=position.step,
        every_steps=config.log.every_steps,
        within_seconds=config.parallel.agree_seconds,
        world_size=ranks.world_size,
    )


def _reporter(
    task: Task,
    config: RunConfig,
    ranks: Ranks,
    attempt: int,
    beats: BeatWriter,
    *,
    total_steps: int,
) -> Reporter:
    peak = config.log.peak_tflops
    return Reporter(
        events=EventLog(ranks, attempt, all_ranks=config.log.all_ranks),
        beats=beats,
        is_first=ranks.is_first,
        total_steps=total_steps,
        global_batch=config.global_batch,
        peak_rate=peak_rate(task, peak * ranks.world_size) if peak else None,
    )


def _say_advice(run: Run, begun_with: Fit | None) -> None:
    """Tells what weights it begins with, and whether the model fits the device."""
    if begun_with and begun_with.whole:
        run.report.noted(f"began with {len(begun_with.loaded)} tensors of {begun_with.path}")
    elif begun_with:
        run.report.warned(begun_with.sentence())
    if run.learner.device.type == "cuda":
        room = torch.cuda.get_device_properties(run.learner.device).total_memory
        strategy = run.config.parallel.strategy
        advice = advise(footprint(run.learner), run.ranks.world_size, strategy, room)
        if advice:
            run.report.warned(advice)


def _say_opened(
    run: Run,
    opened: dict[str, Any],
    split: BatchSplit,
    route: process_group.Route,
    places: Sequence[Place],
) -> None:
    run.report.opened(
        resumed_from=CheckpointInfo(**opened["resume"]) if opened["resume"] else None,
        skipped=opened["skipped"],
        task=run.task_path,
        world_size=run.ranks.world_size,
        places=rank_map(places),
        device=str(run.learner.device),
        precision=run.config.precision,
        global_batch=run.config.global_batch,
        micro_batch=split.micro_batch,
        accumulation=split.accumulation,
        strategy=run.config.parallel.strategy,
        parameters=sum(param.numel() for param in run.learner.model.parameters()),
        bytes_per_rank=footprint(run.learner).by_strategy(run.ranks.world_size),
        train_samples=run.sampler.size,
        **route.described(),
        checkpoint_dir=run.config.checkpoint.directory,
    )
