"""The pass before the first update of an attempt, if the run needs one."""

from collections.abc import Callable

from torch.nn.parallel import DistributedDataParallel

from ddp_trainer.data.sampler import MicroBatch
from ddp_trainer.learner import Learner
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.step import rehearse

COMMUTATIVE_RANKS = 2
"""Above two ranks the order of summation changes the result."""


def rehearse_if_needed(learner: Learner, ranks: Ranks, first: Callable[[], MicroBatch]) -> None:
    """Rehearse if an update depends on it. Every rank must call it, before the first update.

    Args:
        learner: In the state from which it continues.
        ranks: This process's rank.
        first: Returns the first micro-batch, on the device.
    """
    buffers = learner.buffers
    if buffers:
        buffers.watch()
    unknown = buffers is not None and buffers.names is None
    if unknown or _changes_bits(learner, ranks):
        # One more call of the task's loss, which also shows the buffers that it changes.
        rehearse(learner, first())


def _changes_bits(learner: Learner, ranks: Ranks) -> bool:
    """Return whether an attempt's first update would differ in its bits from later updates.

    This concerns the order of summation and the state of compressed buckets. A static graph needs a
    rehearsal too: torch records it in the first pass, and fails if that pass does not reduce.
    """
    if not isinstance(learner.objective, DistributedDataParallel):
        return False
    static = learner.strategy.config.static_graph
    return static or ranks.world_size > COMMUTATIVE_RANKS or learner.compression is not None
