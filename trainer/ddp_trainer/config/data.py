"""How samples reach the model."""

from pydantic import NonNegativeInt, PositiveInt

from ddp_trainer.config.section import Section


class DataConfig(Section):
    """How samples reach the model."""

    shuffle: bool = True
    """Whether each epoch has its own random order."""
    workers: NonNegativeInt | None = 0
    """Processes per rank that prepare batches: 0 prepares them in the rank itself, null takes what
    the container's CPU quota leaves."""
    prefetch: PositiveInt = 2
    """Batches that each worker process keeps ready."""
    persistent_workers: bool = True
    """Whether the workers of evaluations live on between them."""
    pin_memory: bool = True
    """Whether batches for CUDA lie in memory that the device can copy from by itself."""
    eval_batch: PositiveInt | None = None
    """Samples per rank and evaluation step; as many as in training when not stated."""
