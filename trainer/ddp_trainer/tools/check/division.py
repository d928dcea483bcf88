"""Check how many samples each rank and each forward pass get after the division of a batch."""

from functools import partial
from typing import cast

from ddp_trainer.config import RunConfig
from ddp_trainer.data.sampler import divided, shortest_pass
from ddp_trainer.errors import InputError
from ddp_trainer.numerics.batch_norm import norms_in
from ddp_trainer.task import Indexed, Task, is_indexed


def check_batch_norm(task: Task, config: RunConfig, world_size: int) -> None:
    """Check that each BatchNorm of the model gets more than one sample in training.

    Args:
        task: A task that was built for the CPU.
        config: The settings that divide the data.
        world_size: Number of ranks that will train.

    Raises:
        InputError: If BatchNorm on some rank would normalise a single sample.
    """
    if not any(norm.training for norm in norms_in(task.model)):
        return
    micro_batch = config.batch_split(world_size).micro_batch
    division = (
        f"global_batch {config.global_batch}, micro_batch {micro_batch}, world size {world_size}"
    )
    # SyncBatchNorm counts the samples of all ranks.
    shortest = partial(
        shortest_pass,
        world_size=world_size,
        micro_batch=micro_batch,
        together=config.sync_batch_norm,
    )
    alone = "check: BatchNorm would normalise a single sample by itself"
    if shortest(config.global_batch) == 1:
        raise InputError(
            f"{alone}, because a forward pass has only one ({division}): raise global_batch or"
            " micro_batch"
        )
    rest = _last_batch(task, config)
    if rest and shortest(rest) == 1:
        raise InputError(
            f"{alone} at the end of each epoch, where {rest} of"
            f" {len(cast('Indexed', task.train_data))} samples are left ({division}): use"
            " data.drop_last=true or another global_batch"
        )


def check_shares(config: RunConfig, world_size: int) -> str | None:
    """Return a warning if ranks with fewer samples than others get the same weight, else None.

    Only local SGD is affected, because it averages weights. Gradients are weighted by counts.
    """
    fewer, more = (f(divided(config.global_batch, world_size)) for f in (min, max))
    if config.parallel.local_sgd.period is None or fewer == more:
        return None
    return (
        f"parallel.local_sgd gives each rank the same weight in an average, but of global_batch"
        f" {config.global_batch} some of the {world_size} ranks get {more} samples and others"
        f" {fewer}: use a multiple of {world_size} to give each sample the same weight"
    )


def _last_batch(task: Task, config: RunConfig) -> int:
    """Return the number of samples in the incomplete batch that ends an epoch. 0 without one."""
    if config.data.drop_last or not is_indexed(task.train_data):
        return 0
    whole, rest = divmod(len(task.train_data), config.global_batch)
    ends_before = config.max_steps is not None and config.max_steps <= whole
    return 0 if ends_before else rest
