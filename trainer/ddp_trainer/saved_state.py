"""The state of a run in a checkpoint: the content of `state.json`.

The file contains all that a resumed run needs besides tensors: the position, the loss scale, the
settings for the order of samples, and facts about config, code and data. `checkpoint.format`
describes the other files.

Other releases of the trainer read and write the same keys:

- A newer release may add keys. An older release ignores them.
- The checkpoint of an older release lacks keys that were added later. Each of these keys has a
  default in this model for its absence.
- No release may rename or remove a key, or change its type.

No trainer writes a file that does not fit this model, so a checkpoint with such a file counts as
damaged (`checkpoint.contents`).
"""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

LARGEST_NUMBER = 1 << 53
"""Maximum step and attempt number. JSON readers keep larger integers only approximately."""

_SCALER = frozenset(
    {"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"}
)
"""State of torch's `GradScaler`, which is empty if the scaler is disabled."""


class _Part(BaseModel):
    """Base class of JSON objects that refuses wrong types and ignores unknown keys."""

    model_config = ConfigDict(
        frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class NonFiniteCounts(_Part):
    """Counts of updates with gradients that were not finite, and of rollbacks."""

    updates: int = 0
    """Number of updates whose gradients were not finite."""
    rollbacks: int = 0
    """Number of rollbacks to the newest checkpoint because of gradients that were not finite."""


class SavedOptimizer(_Part):
    """Setting `optimizer` in the config of the run that wrote a checkpoint."""

    model_config = ConfigDict(extra="allow")

    name: str | None = None


class SavedConfig(_Part):
    """The config of the run that wrote a checkpoint, with the fields that a resumed run reads.

    The class is not `RunConfig`, because other releases have other settings.
    """

    model_config = ConfigDict(extra="allow")

    seed: int
    optimizer: SavedOptimizer = SavedOptimizer()


class SavedState(_Part):
    """The state of a run after one update, as JSON."""

    step: int
    """Number of completed updates. The name of the checkpoint contains the same number."""
    samples: int = Field(ge=0, le=LARGEST_NUMBER)
    """Number of consumed samples, over all ranks and attempts."""
    seconds: float
    """Time of training in seconds, over all attempts."""
    epoch: int | None = None
    """Epoch of the newest update, from 1. None for data without length."""
    data_size: int | None
    """Number of training samples. None for data without length."""
    order_version: int = 1
    """Version of the algorithm for the order of samples. The first version did not store it."""
    total_steps: int | None = None
    """Number of updates of the whole run."""
    world_size: int = Field(ge=1)
    attempt: int | None = None
    """Number of the attempt that wrote the checkpoint."""
    scaler: dict[str, int | float]
    """State of the loss scale, or empty without a loss scale."""
    compression_on: bool = False
    """Whether updates compress their gradients, if the config enables compression."""
    optimizer: str | None = None
    """Class of the optimizer. None from an older release, which stored only the setting."""
    live_buffers: list[str] | None = None
    """Names of the buffers that the loss changes, or None if unknown."""
    nonfinite: NonFiniteCounts = NonFiniteCounts()
    metrics: dict[str, float] | None = None
    """Finite results of the evaluation after the same update, if it was before the save."""
    task: str | None = None
    """Import path of the task."""
    source: str | None = None
    """Fingerprint of the task's code. None in an older release."""
    data: str | None = None
    """Fingerprint of the data. None in an older release."""
    config: SavedConfig
    versions: dict[str, str] = {}
    """Versions of Python and torch."""

    @field_validator("scaler")
    @classmethod
    def _is_whole(cls, scaler: dict[str, int | float]) -> dict[str, int | float]:
        if scaler and (missing := _SCALER - scaler.keys()):
            raise ValueError(f"{min(missing)} is missing")
        return scaler

    def document(self) -> dict[str, Any]:
        """Return the content of `state.json`. Without an evaluation there is no key for it."""
        return self.model_dump(exclude={"metrics"} if self.metrics is None else None)
