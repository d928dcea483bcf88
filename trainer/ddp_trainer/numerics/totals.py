"""Sum losses over the updates since the last report, on the device and without a host sync.

The named parts of the loss are part of each report's exchange, in a fixed number of slots. So they
need no collective of their own, and different names on different ranks cannot make a collective
hang.
"""

import zlib
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ddp_trainer.errors import InputError
from ddp_trainer.task import LOSS_PARTS

ROWS = 64
"""Number of updates whose sums are stored separately. Adding them up rarely costs less per
update."""
PLACES = LOSS_PARTS + 1
"""Number of values per rank: the sums, then a checksum of the names."""


class LossTotals:
    """Loss sum, loss count and non-finite updates of this rank since the last `clear`."""

    def __init__(self, device: torch.device) -> None:
        self._sums = torch.zeros(3, dtype=torch.float64, device=device)
        # In the losses' own type: an addition of another one makes copies first.
        self._updates = torch.zeros(ROWS, 3, device=device)
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
        """Return a tensor of shape (3,) in fp64: loss sum, loss count, non-finite updates.

        Skip the loss of an update if both the loss and the gradients were not finite.
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
        self._sums += self._updates.sum(0, dtype=torch.float64)
        self._updates.zero_()
        self._use_row(0)


class LossParts:
    """Sums of the loss's named parts on this rank. The first loss determines the names."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._names: list[str] = []
        self._values: Tensor | None = None
        self._update = torch.zeros(0)
        """Sums of the update so far, and of its loss."""

    def add(self, parts: Mapping[str, Tensor], total: Tensor) -> None:
        """Add the parts of one micro-batch, without a host sync.

        Args:
            parts: Scalars without gradients, by name.
            total: Scalar, the loss sum, without a gradient.

        Raises:
            InputError: If the names differ from those of the first micro-batch.
        """
        if self._values is None:
            self._names = sorted(parts)
            self._values = torch.zeros(len(parts), dtype=torch.float64, device=self._device)
            self._update = self._values.new_zeros(len(parts) + 1)
        if len(parts) != len(self._names) or any(name not in parts for name in self._names):
            raise InputError(
                f"task: the parts of the loss must have the same names for every batch, first"
                f" {self._names}, now {sorted(parts)}"
            )
        if parts:
            self._update += torch.stack([*(parts[name] for name in self._names), total])

    def add_update(self, nonfinite: Tensor) -> None:
        """Add one update, right after its micro-batches, unless its loss is left out.

        `LossTotals` skips the loss of an update if both the loss and the gradients were not finite.

        Args:
            nonfinite: Scalar, 1 if its gradients were not finite, else 0.
        """
        if self._values is not None and self._names:
            left_out = (nonfinite > 0) & ~self._update[-1].isfinite()
            self._values += self._update[:-1].masked_fill(left_out, 0.0)
            self._update.zero_()

    def read(self) -> Tensor:
        """Return a tensor of shape (`PLACES`,) in fp64 on the device: sums, then checksum."""
        places = torch.zeros(PLACES, dtype=torch.float64, device=self._device)
        if self._values is not None and self._names:
            places[: len(self._names)] = self._values
            places[-1].fill_(self._checksum())
        return places

    def means(self, summed: Sequence[float], count: float, world_size: int) -> dict[str, float]:
        """Return the mean of each part, over all ranks, and set the sums to zero.

        Args:
            summed: The values of `read`, summed over all ranks.
            count: Loss count of all ranks.
            world_size: Number of ranks.

        Raises:
            InputError: On every rank, if the ranks have different names.
        """
        if summed[-1] != self._checksum() * world_size:
            raise InputError(
                "task: the parts of the loss must have the same names on every rank, on this one"
                f" {self._names}"
            )
        if self._values is not None:
            self._values.zero_()
        nan = float("nan")
        pairs = zip(self._names, summed, strict=False)
        return {name: value / count if count else nan for name, value in pairs}

    def _checksum(self) -> float:
        """Return a 32-bit checksum of the names, or 0 for none. Its sum in fp64 is exact."""
        return float(zlib.crc32("\n".join(self._names).encode()))
