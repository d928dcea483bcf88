"""Check the loss of the first batch of training data in training mode."""

from itertools import islice
from typing import Any

from ddp_trainer.config import RunConfig
from ddp_trainer.data.loader import collate_of
from ddp_trainer.errors import InputError
from ddp_trainer.task import Task
from ddp_trainer.tools.check.reading import collate_input, read_samples
from ddp_trainer.tools.check.step import check_gradients, check_parts


def check_training(task: Task, config: RunConfig, limit: int) -> str | None:
    """Check the loss of the first batch in training mode, see `tools.check.step`.

    Args:
        task: A task that was built for the CPU.
        config: The settings of the run.
        limit: Maximum number of samples to use.

    Returns:
        A sentence about a finding that is an error only with several ranks, or None.

    Raises:
        InputError: If the loss has no gradient, or is not additive.
    """
    size = min(config.micro_batch or config.global_batch, limit)
    batch = list(islice(read_samples(task.train_data, "train_data", config.seed, size), size))

    if not batch:
        raise InputError(
            'task: "train_data" is an iterator that ends after one pass, as a generator does; each'
            " pass needs a new iterator: return an object with __iter__"
        )

    def prepare(first: int, end: int) -> Any:
        return collate_of(task)(collate_input(task.train_data, batch[first:end]))

    check_parts(task, prepare, len(batch))
    return check_gradients(task, prepare(0, len(batch)), config)


def training_batch(task: Task, config: RunConfig, limit: int) -> Any:
    """Return a collated batch of training data.

    Args:
        task: A task that was built for the CPU.
        config: The settings of the run.
        limit: Maximum number of samples to use.
    """
    size = min(config.micro_batch or config.global_batch, limit)
    samples = read_samples(task.train_data, "train_data", config.seed, size)
    return collate_of(task)(collate_input(task.train_data, list(islice(samples, size))))
