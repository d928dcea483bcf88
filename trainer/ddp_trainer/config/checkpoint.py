"""What is kept of a run."""

from pydantic import PositiveInt

from ddp_trainer.config.section import Section


class CheckpointConfig(Section):
    """What is kept, where and how often.

    With no interval stated there is a checkpoint after every epoch and at least every five minutes.
    The end of the run is always saved.
    """

    directory: str | None = None
    """The run's own directory on a volume that outlives it; nothing is saved without one."""
    every_steps: PositiveInt | None = None
    """Updates between two checkpoints."""
    every_seconds: PositiveInt | None = None
    """Seconds between two checkpoints."""
    keep: PositiveInt = 3
    """Newest checkpoints that are kept."""
