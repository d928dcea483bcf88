"""From an import path to a task with its settings resolved."""

from typing import Any

import torch

from ddp_trainer.config import RunConfig
from ddp_trainer.config.settings import check
from ddp_trainer.errors import InputError
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.seeds import derive, seed_all
from ddp_trainer.task import HasOptimizer, RunEnv, Task, check_task, load_build, peak_rate


def build_task(
    path: str, config: RunConfig, ranks: Ranks, device: torch.device
) -> tuple[Task, RunConfig]:
    """Builds a task, under the run's seed.

    Args:
        path: Import path `package.module:function`.
        config: Of the run.
        ranks: This process's place.
        device: Where it will compute.

    Returns:
        The task, and the configuration with the task's own settings resolved.

    Raises:
        InputError: If there is no such task, or its settings are wrong.
    """
    build, model = load_build(path)
    settings = check(model, config.task, prefix="task.")
    env = RunEnv(
        rank=ranks.rank,
        world_size=ranks.world_size,
        local_rank=ranks.local_rank,
        local_world_size=ranks.local_world_size,
        device=device,
        seed=config.seed,
    )
    seed_all(derive(config.seed, "build"))
    task = check_task(build(settings, env), path)
    if isinstance(task, HasOptimizer) and (stated := config.optimizer.model_fields_set):
        key = f"optimizer.{min(stated)}"
        raise InputError(f"config: {key} has no effect: the task brings its own optimizer")
    if config.log.peak_tflops:
        peak_rate(task, config.log.peak_tflops)  # refused here, before anything is opened
    return task, config.model_copy(update={"task": settings.model_dump(mode="json")})


def document_of(path: str, config: RunConfig) -> dict[str, Any]:
    """What describes a run, as JSON.

    Args:
        path: Import path of the task.
        config: Resolved.
    """
    return {"task": path, "config": config.model_dump(mode="json")}
