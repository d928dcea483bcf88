"""Build a task a second time as rank 1 would, and compare it with the task of rank 0."""

import zlib
from collections.abc import Iterable
from typing import Any, cast

import torch

from ddp_trainer.checkpoint.snapshot import own_tensors
from ddp_trainer.config import RunConfig
from ddp_trainer.data.evaluation import evaluation_mode
from ddp_trainer.data.fingerprint import encode, fingerprint
from ddp_trainer.errors import InputError
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.run.building import build_task
from ddp_trainer.task import Data, HasMetrics, Task, is_indexed
from ddp_trainer.tools.check.reading import first_samples, is_read_once

FIRST_SAMPLES = 8
"""Number of first samples of a stream that are compared."""


def check_other_rank(
    task: Task, path: str, config: RunConfig, world_size: int, batch: Any
) -> str | None:
    """Compare the task of rank 0 with the task that rank 1 would build.

    Args:
        task: The task of rank 0.
        path: Import path of the task.
        config: The settings of the run.
        world_size: Number of ranks, two or more.
        batch: A batch of training data, for the names of the metrics.

    Returns:
        A sentence if `build` fails for rank 1, for example because it needs a process group.

    Raises:
        InputError: If rank 1 has other data, another model or other metrics.
    """

    def built(rank: int) -> Task:
        ranks = Ranks(rank, world_size, rank, world_size)
        return build_task(path, config, ranks, torch.device("cpu"))[0]

    try:
        other = built(1)
        try:
            _compare(task, other, batch)
        except InputError:
            # `task` is that of a single process, which may have other data than several ranks.
            _compare(built(0), other, batch)
    except InputError:
        raise
    except (RuntimeError, ValueError) as error:  # For example, it needs a process group.
        return f"build failed for rank 1 of {world_size}: {type(error).__name__}: {error}"
    return None


def _compare(task: Task, other: Task, batch: Any) -> None:
    for name in ("train_data", "eval_data"):
        mine, its = (_described(getattr(one, name)) for one in (task, other))
        if mine != its:
            raise InputError(
                f"task: rank 1 would have other {name} ({its}) than rank 0 ({mine}): build the same"
                " data on every rank, because the trainer divides the samples among the ranks"
            )
    _check_models(task, other)
    _check_metrics(task, other, batch)


def _described(data: Data | None) -> str:
    if data is None or is_indexed(data) or is_read_once(data):
        return fingerprint(data)
    samples = first_samples(cast("Iterable[Any]", data), FIRST_SAMPLES)
    return f"{type(data).__name__}, first samples {zlib.crc32(encode(samples, values=True)):08x}"


def _check_models(task: Task, other: Task) -> None:
    mine, its = (
        {name: tuple(tensor.shape) for name, tensor in own_tensors(one.model).items()}
        for one in (task, other)
    )
    for name in sorted(mine.keys() | its.keys()):
        if mine.get(name) != its.get(name):
            raise InputError(
                f'task: rank 1 would have another model than rank 0: "{name}" is'
                f" {its.get(name, 'missing')} there, not {mine.get(name, 'missing')}"
            )


def _check_metrics(task: Task, other: Task, batch: Any) -> None:
    if not (isinstance(task, HasMetrics) and isinstance(other, HasMetrics)):
        return
    if task.eval_data is None:
        return
    with evaluation_mode(other.model), evaluation_mode(task.model), torch.no_grad():
        mine, its = (sorted(one.metrics(one.model, batch)) for one in (task, other))
    if mine != its:
        raise InputError(
            f"task: metrics must return the same names on every rank, but rank 1 would return"
            f" {its} and rank 0 {mine}"
        )
