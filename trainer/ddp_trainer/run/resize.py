"""Notes about a resumed run whose number of ranks has changed since the checkpoint.

A checkpoint holds whole tensors and one position, so nearly all state means the same on any number
of ranks. The notes are about the rest, and only if the run has it:

- residues of compression, which each rank has for itself,
- random numbers, which each rank draws for itself,
- BatchNorm, which normalises by the samples of one rank,
- the samples of a forward pass, which need more memory on fewer ranks.

Buffers of each rank are in `run.state`, with the other state that an attempt cannot use.
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
    """Return a sentence for each part of a run that a change of the number of ranks concerns.

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
        f"{change}: each rank starts with the mean of the saved residues of powersgd, which adds to"
        " the weights what the saved ones would have added"
    )


def _other_draws(model: nn.Module, change: str) -> str | None:
    if not any(isinstance(module, _DropoutNd) and module.p > 0 for module in model.modules()):
        return None
    return (
        f"{change}: dropout draws other numbers than it would have drawn without the change,"
        " because each rank has its own"
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
        f"{change}: a forward pass has up to {now} samples, before {before}; set micro_batch to"
        " limit the memory of a pass"
    )


def _saved_micro_batch(saved: SavedState) -> int | None:
    """Return the most samples of a forward pass of the run that saved; None if it is not known."""
    settings = saved.config.model_extra or {}
    batch, limit = settings.get("global_batch"), settings.get("micro_batch")
    if not isinstance(batch, int):
        return None
    share = -(-batch // saved.world_size)
    return min(limit, share) if isinstance(limit, int) else share
