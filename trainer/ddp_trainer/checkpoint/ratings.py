"""Compare checkpoints by their evaluations, for `checkpoint.keep_best`."""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from ddp_trainer.checkpoint.format import STATE, BrokenCheckpointError, CheckpointName, read_json
from ddp_trainer.config import CheckpointConfig
from ddp_trainer.saved_state import SavedState


class Ratings:
    """Ratings of a run's checkpoints: higher is better, and NaN is unknown."""

    def __init__(self, directory: Path | None, config: CheckpointConfig) -> None:
        """Rate nothing yet.

        Args:
            directory: The run's directory.
            config: The metric that counts.
        """
        self._directory, self._config = directory, config
        self._known: dict[CheckpointName, float] = {}

    def add(self, name: CheckpointName, metrics: Mapping[str, float] | None) -> None:
        """Add a checkpoint with the metrics of its evaluation, if it has one."""
        self._known[name] = self._value(metrics or {})

    def of(self, name: CheckpointName) -> float:
        """Return the rating of a checkpoint, read from its state once."""
        if self._directory is not None and name not in self._known:
            try:
                state = SavedState.model_validate(read_json(self._directory / str(name) / STATE))
            except (BrokenCheckpointError, ValueError, OSError):
                return math.nan
            self.add(name, state.metrics)
        return self._known.get(name, math.nan)

    def documents(self, names: Iterable[CheckpointName]) -> dict[str, float | None]:
        """Return the ratings as JSON by name, with None for NaN. Empty if none counts."""
        if self._config.keep_best is None:
            return {}
        values = {str(name): self.of(name) for name in names}
        return {name: None if math.isnan(value) else value for name, value in values.items()}

    def is_best(self, metrics: Mapping[str, float], names: Iterable[CheckpointName]) -> bool:
        """Return whether an evaluation is better than those of the named checkpoints."""
        value, others = self._value(metrics), map(self.of, names)
        return not math.isnan(value) and all(math.isnan(o) or value > o for o in others)

    def _value(self, metrics: Mapping[str, float]) -> float:
        """Return the rating of an evaluation."""
        best = self._config.keep_best
        value = math.nan if best is None else metrics.get(best, math.nan)
        return value if self._config.keep_best_mode == "max" else -value
