"""How samples reach the model."""

from pydantic import NonNegativeInt, PositiveInt

from ddp_trainer.config.section import Section


class DataConfig(Section):
    """How samples reach the model."""

    shuffle: bool = True
    """Whether each epoch has its own random order."""
    workers: NonNegativeInt = 0
    """Processes per rank that prepare batches; 0 prepares them in the rank itself."""
    prefetch: PositiveInt = 2
    """Batches that each worker process keeps ready."""
    eval_batch: PositiveInt | None = None
    """Samples per rank and evaluation step; as many as in training when not stated."""
