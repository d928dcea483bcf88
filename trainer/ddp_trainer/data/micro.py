"""What one rank computes in one forward pass."""

from typing import Any, NamedTuple

from ddp_trainer.data.sampler import Portion


class Micro(NamedTuple):
    """One rank's batch of one forward pass."""

    batch: Any
    weight: float
    """1, or 0 for a stand-in."""
    update_samples: int
    """Samples of the whole update, over all ranks."""
    last: bool
    """Whether this is the rank's last forward pass of the update."""

    @classmethod
    def of(cls, portion: Portion[Any], batch: Any) -> "Micro":
        """The batch of a portion."""
        return cls(batch, portion.weight, portion.update_samples, portion.last)
