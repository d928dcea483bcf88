"""Run all checks of a task. A check whose mistake can cause another one comes first."""

from collections.abc import Callable
from typing import Any

import torch

from ddp_trainer.config import RunConfig
from ddp_trainer.data.loader import make_sampler
from ddp_trainer.errors import InputError
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.run.building import build_task
from ddp_trainer.run.state import task_state
from ddp_trainer.task import Task
from ddp_trainer.tools.check.batch import check_batch
from ddp_trainer.tools.check.division import check_batch_norm, check_shares
from ddp_trainer.tools.check.first_batch import check_training, training_batch
from ddp_trainer.tools.check.model import check_model, check_optimizer
from ddp_trainer.tools.check.passes import watch_passes
from ddp_trainer.tools.check.ranks import check_other_rank
from ddp_trainer.tools.check.reading import is_read_once
from ddp_trainer.tools.check.repeats import unrepeatable_sample
from ddp_trainer.tools.check.samples import check_data
from ddp_trainer.tools.check.step import check_task

Emit = Callable[..., None]
"""Function that writes an event. It takes the kind of event, and the fields by name."""


def check_run(path: str, config: RunConfig, samples: int, world_size: int, emit: Emit) -> None:
    """Build a task on the CPU and check the task, its data and its training.

    Args:
        path: Import path of the task.
        config: The settings of the run.
        samples: Maximum number of samples to read of each data set.
        world_size: Number of ranks that will train.
        emit: Function that reports a summary of each data set, and each finding that may be
            intended.

    Raises:
        InputError: The first mistake.
    """
    copied: list[str] = []
    task, config = build_task(path, config, Ranks(), torch.device("cpu"), copied.append)
    for sentence in copied:
        _warn(emit, sentence)
    make_sampler(task, config)
    check_task(task, config)
    _warn(emit, check_model(task.model, config.parallel.strategy))
    check_optimizer(task)
    task_state(task)
    check_batch_norm(task, config, world_size)
    _warn(emit, check_shares(config, world_size))
    for name in ("train_data", "eval_data"):
        _check_one(task, name, config, samples, emit)
    problem = check_training(task, config, samples)
    if problem and world_size > 1:
        raise InputError(f"check: {problem}")
    _warn(emit, problem and f"on several ranks this would fail: {problem}")
    if not is_read_once(task.train_data):
        _check_batch(task, path, config, (samples, world_size), emit)


def _check_one(task: Task, name: str, config: RunConfig, samples: int, emit: Emit) -> None:
    data = getattr(task, name)
    if data is None:
        return
    summary = check_data(task, name, config, samples)
    size = len(data) if hasattr(data, "__len__") else None
    emit("check", data=name, size=size, **summary.event_fields())
    _warn(emit, unrepeatable_sample(data, name))


def _check_batch(
    task: Task, path: str, config: RunConfig, limits: tuple[int, int], emit: Emit
) -> None:
    samples, world_size = limits
    batch: Any = training_batch(task, config, samples)
    _warn(emit, check_batch(batch))
    passes = watch_passes(task, batch, config)
    for sentence in passes.warnings:
        _warn(emit, sentence)
    if passes.buffers:
        emit(
            "note",
            message=f'training changes {len(passes.buffers)} buffers, first "{passes.buffers[0]}";'
            f" on several ranks parallel.buffers applies, which is {config.parallel.buffers}",
        )
    if world_size > 1:
        _warn(emit, check_other_rank(task, path, config, world_size, batch))


def _warn(emit: Emit, sentence: str | None) -> None:
    if sentence:
        emit("warning", message=sentence)
