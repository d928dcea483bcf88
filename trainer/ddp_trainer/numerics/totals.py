"""Sums over the updates since the last report, kept on the device without a host sync."""

import torch
from torch import Tensor

ROWS = 64
"""Updates whose sums are kept apart. Their addition costs less per update if it comes seldom."""


class LossTotals:
    """Loss sum, loss count and non-finite updates of this rank since the last `clear`."""

    def __init__(self, device: torch.device) -> None:
        self._sums = torch.zeros(3, dtype=torch.float64, device=device)
        self._updates = self._sums.new_zeros(ROWS, 3)
        self._rows = [row.unbind() for row in self._updates]
        self._use_row(0)

    def add_loss(self, total: Tensor, count: Tensor) -> None:
        """Add the loss of one micro-batch.

        Args:
            total: Scalar, the loss sum, without a gradient.
            count: Scalar, the loss count.
        """
        # One call for both: an update of a small model takes only a few milliseconds.
        torch._foreach_add_([self._loss, self._count], [total, count])

    def add_update(self, nonfinite: Tensor) -> None:
        """Count one update, right after its micro-batches.

        Args:
            nonfinite: Scalar, 1 if its gradients were not finite, else 0.
        """
        self._nonfinite += nonfinite
        if self._row + 1 == ROWS:
            self._add_rows()
        else:
            self._use_row(self._row + 1)

    def read(self) -> Tensor:
        """Return shape (3,), fp64: loss sum, loss count, updates with non-finite gradients.

        Leave out the loss of an update if neither it nor the gradients were finite.
        """
        self._add_rows()
        return self._sums

    def clear(self) -> None:
        """Set all sums to zero."""
        self._add_rows()
        self._sums.zero_()

    def _use_row(self, row: int) -> None:
        self._row = row
        self._loss, self._count, self._nonfinite = self._rows[row]

    def _add_rows(self) -> None:
        loss, _, nonfinite = self._updates.unbind(1)
        left_out = (nonfinite > 0) & ~loss.isfinite()
        self._updates[:, :2].masked_fill_(left_out.unsqueeze(1), 0.0)
        self._sums += self._updates.sum(0)
        self._updates.zero_()
        self._use_row(0)
