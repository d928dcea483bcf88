"""Report the effects of a changed number of ranks on a resumed run.

A checkpoint contains whole tensors and one position, so nearly all state is independent of the
number of ranks. The notes cover the exceptions, if the run has them:

- residues of compression, of which each rank has its own,
- random numbers, which each rank draws separately,
- BatchNorm, which normalises by the samples of one rank,
- the samples of a forward pass, which need more memory on fewer ranks.

`run.state` reports buffers of single ranks, and other state that an attempt cannot use.
"""

from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from ddp_trainer.checkpoint.snapshot import Checkpoint
from ddp_trainer.config import RunConfig
from ddp_trainer.learner import Learner
from ddp_trainer.numerics.batch_norm import norms_in
from ddp_trainer.parallel.compression import residues_in
from ddp_trainer.saved_state import SavedState


def resize_notes(
    learner: Learner, config: RunConfig, world_size: int, saved: Checkpoint | None
) -> list[str]:
    """Return one sentence for each part of a run that a changed number of ranks affects.

    Args:
        learner: The restored learner.
        config: The resolved config.
        world_size: Number of ranks now.
        saved: The checkpoint from which the run resumes, if any.
    """
    if saved is None or saved.state.world_size == world_size:
        return []
    change = f"{world_size} ranks instead of {saved.state.world_size}"
    found = (
        _mean_residues(learner, change, saved),
        _other_draws(learner.model, change),
        _other_norms(learner.model, change),
        _larger_passes(config, world_size, saved.state, change),
    )
    return [sentence for sentence in found if sentence]


def _mean_residues(learner: Learner, change: str, saved: Checkpoint) -> str | None:
    used = learner.compression is not None and learner.compression.has_feedback
    if not used or not residues_in(saved.snapshot.compression):
        return None
    return (
        f"{change}: each rank starts with the mean of the saved residues of powersgd, so their mean"
        " over the ranks stays the same"
    )


def _other_draws(model: nn.Module, change: str) -> str | None:
    if not any(isinstance(module, _DropoutNd) and module.p > 0 for module in model.modules()):
        return None
    return (
        f"{change}: dropout draws other numbers than it would have drawn without the change,"
        " because each rank draws its own"
    )


def _other_norms(model: nn.Module, change: str) -> str | None:
    if all(isinstance(module, nn.SyncBatchNorm) for module in norms_in(model)):
        return None
    return (
        f"{change}: BatchNorm normalises other parts of each batch, because each rank normalises"
        " its own samples (sync_batch_norm is false)"
    )


def _larger_passes(
    config: RunConfig, world_size: int, saved: SavedState, change: str
) -> str | None:
    before = _saved_micro_batch(saved)
    now = config.batch_split(world_size).micro_batch
    if before is None or now <= before or saved.world_size < world_size:
        return None
    return (
        f"{change}: a forward pass has up to {now} samples instead of {before}; set micro_batch"
        " to limit the memory of a pass"
    )


def _saved_micro_batch(saved: SavedState) -> int | None:
    """Return the largest forward pass, in samples, of the run that saved; None if unknown."""
    settings = saved.config.model_extra or {}
    batch, limit = settings.get("global_batch"), settings.get("micro_batch")
    if not isinstance(batch, int):
        return None
    share = -(-batch // saved.world_size)
    return min(limit, share) if isinstance(limit, int) else share
