"""The state of a run in a checkpoint: the content of `state.json`.

It holds what a resumed run needs besides tensors: the position, the loss scale, what decides the
order of the samples, and which settings, code and data it had. The files with tensors and those of
optimizer and task are described in `checkpoint.format`.

The keys are a format, which other releases of the trainer read and write:

- A newer release may add keys. An older release ignores them.
- The checkpoint of an older release lacks keys that were added later. Each of these has a default
  here, which says what its absence means.
- No key is renamed, removed or given another type.

A file that does not fit this model is one that no trainer writes. The checkpoint then counts as
damaged (`checkpoint.contents`).
"""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

LARGEST_NUMBER = 1 << 53
"""Largest step and attempt. JSON readers keep larger integers only approximately."""

_SCALER = frozenset(
    {"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"}
)
"""State of torch's `GradScaler`, which is empty if it is off."""


class _Part(BaseModel):
    """A JSON object that takes no value of a wrong type, and ignores unknown keys."""

    model_config = ConfigDict(
        frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class NonFiniteCounts(_Part):
    """How often a run had gradients that were not finite."""

    updates: int = 0
    """Updates with such gradients."""
    rollbacks: int = 0
    """Returns to the newest checkpoint because of them."""


class SavedOptimizer(_Part):
    """The setting `optimizer` of the run that wrote a checkpoint."""

    model_config = ConfigDict(extra="allow")

    name: str | None = None


class SavedConfig(_Part):
    """The config of the run that wrote a checkpoint: what a resumed run reads of it, and the rest.

    It is no `RunConfig`, because other releases have other settings.
    """

    model_config = ConfigDict(extra="allow")

    seed: int
    optimizer: SavedOptimizer = SavedOptimizer()


class SavedState(_Part):
    """The state of a run after one update, as JSON."""

    step: int
    """Updates done. The name of the checkpoint has the same number."""
    samples: int = Field(ge=0, le=LARGEST_NUMBER)
    """Samples consumed, over all ranks and attempts."""
    seconds: float
    """Time of training in seconds, over all attempts."""
    epoch: int | None = None
    """Epoch of the newest update, from 1. None for data without length."""
    data_size: int | None
    """Number of training samples. None for data without length."""
    order_version: int = 1
    """Version of the order of the samples. The first one did not state it."""
    total_steps: int | None = None
    """Updates of the whole run."""
    world_size: int = Field(ge=1)
    attempt: int | None = None
    """Number of the attempt that wrote the checkpoint."""
    scaler: dict[str, int | float]
    """State of the loss scale, which is empty without one."""
    compression_on: bool = False
    """Whether updates compress their gradients, if the config asks for compression."""
    optimizer: str | None = None
    """Class of the optimizer. None in an older release, which stated only the setting."""
    live_buffers: list[str] | None = None
    """Names of the buffers that the loss changes. None if they are not known."""
    nonfinite: NonFiniteCounts = NonFiniteCounts()
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
        """Return the content of `state.json`."""
        return self.model_dump()
