"""Read DDP's own measurements of the parts of an update.

DDP measures the first ten updates and then one in a hundred, with the clock of the device. This
module only copies the newest results, in less than 0.1 ms. It does not communicate or wait for the
device. torch calls these results a prototype.
"""

from dataclasses import dataclass
from typing import Any

from torch import nn

_NANOSECONDS = 1e9


@dataclass(frozen=True, slots=True)
class DdpTimes:
    """Durations of the parts of an update, in seconds."""

    forward: float
    backward: float
    """Duration of the backward pass, without the wait for reductions after its end."""
    reduction: float
    """From the start of the first reduction of gradients to the end of the last one.

    If ranks wait for a slow rank, their reductions take longer.
    """
    overlap: float
    """Part of the reduction that overlaps with the backward pass."""

    @property
    def exposed(self) -> float:
        """Part of the reduction that does not overlap with computation."""
        return max(0.0, self.reduction - self.overlap)


def mean_times(wrapped: nn.Module) -> DdpTimes | None:
    """Return the mean over all measured updates, or None without DDP or a measurement."""
    return _times(wrapped, "avg_")


def newest_times(wrapped: nn.Module) -> DdpTimes | None:
    """Return the times of the newest measured update, or None if DDP has measured nothing."""
    return _times(wrapped, "")


def _times(wrapped: nn.Module, prefix: str) -> DdpTimes | None:
    read = getattr(wrapped, "_get_ddp_logging_data", None)
    found: dict[str, Any] = read() if read else {}
    try:
        forward, backward, reduction, overlap = (
            max(0, int(found[f"{prefix}{name}_time"])) / _NANOSECONDS
            for name in (
                "forward_compute",
                "backward_compute",
                "backward_comm",
                "backward_compute_comm_overlap",
            )
        )
    except (KeyError, ValueError):
        return None
    # Without a measurement all times are 0.
    return DdpTimes(forward, backward, reduction, overlap) if reduction else None
