"""Create the task from its import path, and resolve its settings."""

from collections.abc import Callable
from typing import Any

import torch

from ddp_trainer.config import RunConfig
from ddp_trainer.config.credentials import credentials_warning
from ddp_trainer.config.settings import check
from ddp_trainer.errors import InputError
from ddp_trainer.numerics.compiler import check_compiler
from ddp_trainer.parallel.deferred import is_deferred
from ddp_trainer.parallel.layout import copied_sentence, make_dense
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.seeds import derive_seed, seed_all
from ddp_trainer.task import HasOptimizer, RunEnv, Task, check_task, load_build, peak_rate
from ddp_trainer.trackers.trackers import check_installed


def build_task(
    path: str,
    config: RunConfig,
    ranks: Ranks,
    device: torch.device,
    warn: Callable[[str], None] = lambda _: None,
) -> tuple[Task, RunConfig]:
    """Build a task, with all generators seeded by the run's seed.

    Args:
        path: Import path `package.module:function`.
        config: Config of the run.
        ranks: This process's rank.
        device: The rank's device.
        warn: Function that is called with a warning about weights that the trainer copies, and with
            one about settings that look like credentials.

    Returns:
        The task, and the config with the task's own settings resolved.

    Raises:
        InputError: If the task does not exist, its settings are invalid, a program or package that
            they need is missing, or the model has weights that cannot be trained.
    """
    if config.compile:
        check_compiler(device)
    build, model = load_build(path)
    settings = check(model, config.task, prefix="task.")
    env = RunEnv(
        rank=ranks.rank,
        world_size=ranks.world_size,
        local_rank=ranks.local_rank,
        local_world_size=ranks.local_world_size,
        device=device,
        seed=config.seed,
        splits_model=config.parallel.strategy == "fsdp2" and ranks.world_size > 1,
    )
    seed_all(derive_seed(config.seed, "build"))
    task = check_task(build(settings, env), path)
    if sentence := copied_sentence(make_dense(task.model)):
        warn(sentence)
    if isinstance(task, HasOptimizer) and (stated := config.optimizer.model_fields_set):
        key = f"optimizer.{min(stated)}"
        raise InputError(f"config: {key} must not be set, because the task has its own optimizer")
    if config.checkpoint.keep_best is not None and task.eval_data is None:
        raise InputError(
            "config: checkpoint.keep_best requires evaluation data, but the task has none"
        )
    _check_deferred(task, config)
    check_installed(config.log.trackers)
    if config.log.peak_tflops:
        # Raise its InputError here, before the rank opens the run.
        peak_rate(task, config.log.peak_tflops)
    dumped = settings.model_dump(mode="json")
    if sentence := credentials_warning(dumped):
        warn(sentence)
    return task, config.model_copy(update={"task": dumped})


def _check_deferred(task: Task, config: RunConfig) -> None:
    if config.init_from and is_deferred(task.model):
        raise InputError(
            "config: init_from cannot load weights into a model that was built within"
            " env.deferred_weights(): build the model without that context"
        )


def document_of(path: str, config: RunConfig) -> dict[str, Any]:
    """Return the JSON document that describes a run.

    Args:
        path: Import path of the task.
        config: Resolved config.
    """
    return {"task": path, "config": config.model_dump(mode="json")}
