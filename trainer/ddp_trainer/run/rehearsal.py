"""Run an extra pass before the first update of an attempt, if the run needs one."""

from collections.abc import Callable

from torch.nn.parallel import DistributedDataParallel

from ddp_trainer.data.sampler import MicroBatch
from ddp_trainer.learner import Learner
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.step import rehearse

COMMUTATIVE_RANKS = 2
"""Maximum number of ranks for which the order of summation never changes the result."""


def rehearse_if_needed(learner: Learner, ranks: Ranks, first: Callable[[], MicroBatch]) -> None:
    """Run a rehearsal pass if the first update needs it. Every rank must call this.

    Args:
        learner: Learner in the state from which the run continues.
        ranks: This process's rank.
        first: Function that returns the first micro-batch, on the device.
    """
    buffers = learner.buffers
    if buffers:
        buffers.watch()
    unknown = buffers is not None and buffers.names is None
    if unknown or _changes_bits(learner, ranks):
        # One more call of the task's loss, which also shows the buffers that it changes.
        rehearse(learner, first())


def _changes_bits(learner: Learner, ranks: Ranks) -> bool:
    """Return whether the first update of an attempt would compute other bits than later ones.

    The reasons are the order of summation and the state of compressed buckets. A static graph also
    needs a rehearsal, because torch records the graph in the first pass and fails if that pass does
    not reduce.
    """
    if not isinstance(learner.objective, DistributedDataParallel):
        return False
    static = learner.strategy.config.static_graph
    return static or ranks.world_size > COMMUTATIVE_RANKS or learner.compression is not None
