"""What updates came to since the last report, on the device, without a host sync."""

import torch
from torch import Tensor

KEPT = 64
"""Numbers of so many updates are kept before they are added up: one addition in place of many."""


class Tally:
    """Loss sums, loss counts and broken updates of this rank since it was last cleared."""

    def __init__(self, device: torch.device) -> None:
        self._sums = torch.zeros(3, dtype=torch.float64, device=device)
        self._totals: list[Tensor] = []
        self._counts: list[Tensor] = []
        self._broken: list[Tensor] = []

    def passed(self, total: Tensor, count: Tensor) -> None:
        """Notes a forward pass.

        Args:
            total: Shape (1,), the loss sum without a gradient; like the count not to be changed any
                more.
            count: Scalar, the loss count.
        """
        self._totals.append(total)
        self._counts.append(count)

    def updated(self, broken: Tensor) -> None:
        """Notes an update.

        Args:
            broken: Scalar, 1 if its gradients were not finite, else 0; not to be changed any more.
        """
        self._broken.append(broken)
        if len(self._broken) >= KEPT:
            self.read()

    def read(self) -> Tensor:
        """Shape (3,), fp64: loss sum, loss count, updates whose gradients were not finite."""
        if self._totals:
            losses = torch.stack((torch.cat(self._totals), torch.stack(self._counts)))
            self._sums[:2] += losses.double().sum(1)
        if self._broken:
            self._sums[2] += torch.stack(self._broken).double().sum()
        self._forget()
        return self._sums

    def clear(self) -> None:
        """Begins anew."""
        self._forget()
        self._sums.zero_()

    def _forget(self) -> None:
        self._totals, self._counts, self._broken = [], [], []
