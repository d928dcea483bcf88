"""Every setting of a run: typed, with its default and its sentence. Imports no torch.

A run is described by one frozen `RunConfig`. The settings of the task itself live in the section
`task` and are typed by the task's own model, so they are kept here as the plain document that the
user gave until the task has been imported.
"""

from ddp_trainer.config.learning import (
    EmaConfig,
    NonFiniteConfig,
    OptimizerConfig,
    ScheduleConfig,
)
from ddp_trainer.config.parallel import (
    CompressionConfig,
    DebugLevel,
    LocalSgdConfig,
    ParallelConfig,
    StrategyName,
)
from ddp_trainer.config.run import (
    BatchSplit,
    CheckpointConfig,
    DataConfig,
    Device,
    LogConfig,
    Precision,
    RunConfig,
)
from ddp_trainer.config.section import Section

__all__ = [
    "BatchSplit",
    "CheckpointConfig",
    "CompressionConfig",
    "DataConfig",
    "DebugLevel",
    "Device",
    "EmaConfig",
    "LocalSgdConfig",
    "LogConfig",
    "NonFiniteConfig",
    "OptimizerConfig",
    "ParallelConfig",
    "Precision",
    "RunConfig",
    "ScheduleConfig",
    "Section",
    "StrategyName",
]
