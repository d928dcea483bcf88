"""Sums over the updates since the last report, kept on the device without a host sync."""

import torch
from torch import Tensor


class LossTotals:
    """Loss sum, loss count and non-finite updates of this rank since the last `clear`."""

    def __init__(self, device: torch.device) -> None:
        self._sums = torch.zeros(3, dtype=torch.float64, device=device)
        self._loss, self._count, self._nonfinite = self._sums.unbind()

    def add_loss(self, total: Tensor, count: Tensor) -> None:
        """Add the loss of one micro-batch.

        Args:
            total: Scalar, the loss sum, without a gradient.
            count: Scalar, the loss count.
        """
        # One call for both: an update of a small model takes only a few milliseconds.
        torch._foreach_add_([self._loss, self._count], [total, count])

    def add_update(self, nonfinite: Tensor) -> None:
        """Count one update.

        Args:
            nonfinite: Scalar, 1 if its gradients were not finite, else 0.
        """
        self._nonfinite += nonfinite

    def read(self) -> Tensor:
        """Return shape (3,), fp64: loss sum, loss count, updates with non-finite gradients."""
        return self._sums

    def clear(self) -> None:
        """Set all sums to zero."""
        self._sums.zero_()
