"""Opening a run: build the task, join the other ranks, resume."""

import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ddp_agent.contract import CheckpointInfo, RankPhase
from ddp_agent.machine import cpu_count
from ddp_trainer.checkpoint.manager import CheckpointManager
from ddp_trainer.checkpoint.snapshot import Snapshot, put_model, put_optimizer
from ddp_trainer.config import BatchSplit, RunConfig
from ddp_trainer.data.budget import Budget, share_out
from ddp_trainer.data.loader import Loading, Sampler, make_sampler
from ddp_trainer.data.prefetch import to_device
from ddp_trainer.data.sampler import Taker
from ddp_trainer.data.stream import StreamSampler
from ddp_trainer.environment import Ranks
from ddp_trainer.errors import InputError
from ddp_trainer.numerics.optimizer import build_optimizer
from ddp_trainer.numerics.precision import grad_scaler, set_matmul_precision
from ddp_trainer.numerics.seeds import derive, seed_all
from ddp_trainer.observe.beats import BeatWriter
from ddp_trainer.observe.events import EventLog
from ddp_trainer.observe.report import Reporter
from ddp_trainer.parallel import process_group
from ddp_trainer.parallel.agreement import Agreement
from ddp_trainer.parallel.collectives import on_first_rank
from ddp_trainer.parallel.strategy import Objective, replicate
from ddp_trainer.run import Position, Run
from ddp_trainer.settings import check
from ddp_trainer.step import Learner, rehearse
from ddp_trainer.stop import StopFlag
from ddp_trainer.task import HasOptimizer, RunEnv, Task, check_task, load_build

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
    set_matmul_precision(order.config.precision)
    split = order.config.batch_split(ranks.world_size)
    task, config = _build(order, ranks, device)
    process_group.join(ranks, device, config.parallel.timeout_seconds)
    beats.phase(RankPhase.TRAINING)

    checkpoints = CheckpointManager(config.checkpoint)
    document = {"task": order.task, "config": config.model_dump(mode="json")}
    opened = on_first_rank(lambda: checkpoints.open(order.attempt, document, order.job), device)
    saved = checkpoints.receive(device) if opened["resume"] else None
    sampler = make_sampler(task, config)
    position = _position(saved, sampler) if saved else Position()
    total = _total_steps(sampler, position, config)
    taker = Taker(ranks.rank, ranks.world_size, split.micro_batch)
    budget = _budget(config, ranks)
    loading = Loading(task, config.data, budget, device)
    learner = _learner(task, config, ranks, device, saved)
    if ranks.world_size > COMMUTATIVE_RANKS and position.step < total:
        rehearse(learner, to_device(loading.first(sampler, taker, position.samples), device))
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
        report=_reporter(config, ranks, opened["attempt"], beats, total_steps=total),
        position=position,
        total_steps=total,
    )
    _say_opened(run, opened, split)
    if budget.warning:
        run.report.warned(budget.warning)
    return run


def _build(order: Order, ranks: Ranks, device: torch.device) -> tuple[Task, RunConfig]:
    """The task, and the configuration with the task's own settings resolved."""
    build, model = load_build(order.task)
    settings = check(model, order.config.task, prefix="task.")
    env = RunEnv(
        rank=ranks.rank,
        world_size=ranks.world_size,
        local_rank=ranks.local_rank,
        local_world_size=ranks.local_world_size,
        device=device,
        seed=order.config.seed,
    )
    seed_all(derive(order.config.seed, "build"))
    task = check_task(build(settings, env), order.task)
    if isinstance(task, HasOptimizer) and (stated := order.config.optimizer.model_fields_set):
        key = f"optimizer.{min(stated)}"
        raise InputError(f"config: {key} has no effect: the task brings its own optimizer")
    resolved = order.config.model_copy(update={"task": settings.model_dump(mode="json")})
    return task, resolved


def _learner(
    task: Task, config: RunConfig, ranks: Ranks, device: torch.device, saved: Snapshot | None
) -> Learner:
    """The model on its device, with saved state where there is any, replicated."""
    model = task.model.to(device)
    params = [param for param in model.parameters() if param.requires_grad]
    optimizer = _optimizer(task, params, config)
    peak_lrs = [float(group["lr"]) for group in optimizer.param_groups]
    scaler = grad_scaler(config.precision, device)
    if saved:
        put_model(model, saved.model)
        keep = not isinstance(task, HasOptimizer)
        put_optimizer(model, optimizer, saved.optimizer, saved.optimizer_rest, keep_groups=keep)
        if saved.state["scaler"] and scaler.is_enabled():
            scaler.load_state_dict(saved.state["scaler"])
    objective = Objective(model, task.loss)
    return Learner(
        objective=replicate(objective, device, config.parallel),
        model=model,
        carrier=objective.carrier,
        optimizer=optimizer,
        peak_lrs=peak_lrs,
        scaler=scaler,
        device=device,
        precision=config.precision,
        clip_norm=config.clip_norm,
        share=config.batch_split(ranks.world_size).per_rank,
        seed=config.seed,
        rank=ranks.rank,
        totals=torch.zeros(2, dtype=torch.float64, device=device),
    )


def _optimizer(task: Task, params: list[nn.Parameter], config: RunConfig) -> torch.optim.Optimizer:
    if isinstance(task, HasOptimizer):
        return task.optimizer(params)
    return build_optimizer(params, config.optimizer)


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
    config: RunConfig, ranks: Ranks, attempt: int, beats: BeatWriter, *, total_steps: int
) -> Reporter:
    return Reporter(
        events=EventLog(ranks, attempt),
        beats=beats,
        is_first=ranks.is_first,
        total_steps=total_steps,
        global_batch=config.global_batch,
    )


def _say_opened(run: Run, opened: dict[str, Any], split: BatchSplit) -> None:
    run.report.opened(
        resumed_from=CheckpointInfo(**opened["resume"]) if opened["resume"] else None,
        skipped=opened["skipped"],
        task=run.task_path,
        world_size=run.ranks.world_size,
        device=str(run.learner.device),
        precision=run.config.precision,
        global_batch=run.config.global_batch,
        micro_batch=split.micro_batch,
        accumulation=split.accumulation,
        parameters=sum(param.numel() for param in run.learner.model.parameters()),
        train_samples=run.sampler.size,
        checkpoint_dir=run.config.checkpoint.directory,
    )
