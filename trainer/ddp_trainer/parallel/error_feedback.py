"""Keep PowerSGD's error feedback in units that do not depend on the size of a batch.

PowerSGD adds the error of one update, the residue, to the next update (Vogels et al. 2019,
arXiv:1905.13727). The trainer reduces gradients of sums, which grow with the batch. So the residue
of a full batch could be many times the gradient of a short last batch. Therefore residues are kept
as gradients of the mean.

The reduction needs residues as gradients of a sum, but the count of the update is known only
afterwards. The count is estimated from the number of samples, which all ranks know, and from the
count per sample of recent updates. For counts of samples the estimate is exact. For counts of
tokens the next residue contains the difference, so nothing is lost and nothing is added twice. The
estimate must be the same on all ranks, because only the sum of their residues is small. The
estimate costs no collective.

A reduction uses only the mean of the ranks' residues. So at another number of ranks, each rank
starts with the mean of the saved residues, and the sum of all updates stays exact.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState

GROWTH = 1.1
"""Maximum factor by which the estimated count per sample may rise in an update; it may fall without
limit. An estimate that is often more than twice the count would make the residue diverge."""

_TINY = torch.finfo(torch.float32).tiny


class ErrorFeedback:
    """Converter of this rank's residues before and after each reduction."""

    def __init__(self, power: PowerSGDState, device: torch.device, count_scale: float) -> None:
        """Convert the residues of a state of torch's PowerSGD hook, in place.

        Args:
            power: The state. Its residues are gradients of the mean between updates.
            device: Device of the gradients.
            count_scale: Reduced count divided by the count of all ranks.
        """
        self._power = power
        self._count_scale = count_scale
        self._samples = 0
        self._before: tuple[dict[int, Tensor], dict[int, Tensor]] | None = None
        """Residues and matrices before the update that is in progress."""
        self.rate = torch.zeros((), device=device)
        """Estimated count per sample. 0 before the first update."""

    def add(self, index: int, saved: Tensor, part: float) -> None:
        """Add a saved residue, times a factor, to this rank's residue.

        Args:
            index: Number of the bucket.
            saved: The residue that a rank saved.
            part: Factor of the saved residue.
        """
        share = saved.to(self.rate.device) * part
        before = self._power.error_dict.get(index)
        self._power.error_dict[index] = share if before is None else before + share

    def begin(self, samples: int, scale: Callable[[Tensor], Tensor]) -> None:
        """Convert the residues to the units of the gradients that are about to be reduced.

        Args:
            samples: Samples of the update, over all ranks.
            scale: Factor of the differentiated sum but not of the count, from an fp16 gradient
                scaler.
        """
        self._samples = samples
        self._expected = self.rate * (samples * self._count_scale)
        self._scale = scale(torch.ones_like(self._expected))
        residues = dict(self._power.error_dict)
        directions = {i: q.clone() for i, q in self._power.q_memory_dict.items()}
        self._before = residues, directions  # First, because another thread may read them.
        factor = self._expected * self._scale
        for index, residue in residues.items():
            self._power.error_dict[index] = residue * factor

    @property
    def before(self) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
        """Residues and matrices as they were before the update that is in progress, if any."""
        if self._before is not None:
            return self._before
        return dict(self._power.error_dict), dict(self._power.q_memory_dict)

    def finish(self, count: Tensor, nonfinite: Tensor) -> None:
        """Convert the new residues to gradients of the mean.

        Args:
            count: Mean count of the ranks, as reduced.
            nonfinite: Scalar, 1 if the update is skipped because its gradients were not finite.
                In this case, or if the count is 0, residues and matrices stay unchanged.
        """
        residues, directions = self.before
        count = count.detach().squeeze()
        skipped = nonfinite.bool() | (count == 0)
        count = count.clamp_min(_TINY)
        unit = (count * self._scale).reciprocal()
        carried = 1 - self._expected / count
        for index, lost in self._power.error_dict.items():
            before = residues.get(index)
            if before is None:
                before = torch.zeros_like(lost)
            after = torch.addcmul(before * carried, lost, unit)
            self._power.error_dict[index] = torch.where(skipped, before, after)
        for index, found in self._power.q_memory_dict.items():
            earlier = directions.get(index)
            if earlier is None:
                earlier = _first_directions(found)
            self._power.q_memory_dict[index] = torch.where(skipped, earlier, found)
        self._before = None
        rate = count / (self._samples * self._count_scale)
        rate = torch.where(self.rate > 0, torch.minimum(rate, GROWTH * self.rate), rate)
        self.rate = torch.where(skipped, self.rate, rate)


def _first_directions(like: Tensor) -> Tensor:
    """Return random numbers, equal on all ranks, for matrices that were never computed."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(like.shape, generator=generator, dtype=like.dtype).to(like.device)
