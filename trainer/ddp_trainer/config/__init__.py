"""All settings of a run with types, defaults and descriptions. It does not import torch.

One frozen `RunConfig` describes a run. Its section `task` holds the settings of the task as plain
JSON, because only the task's own model can validate them, after the task has been imported.
"""

from ddp_trainer.config.learning import (
    EmaConfig,
    NonFiniteConfig,
    OptimizerConfig,
    ScheduleConfig,
)
from ddp_trainer.config.parallel import (
    BufferPolicy,
    CompressionConfig,
    DebugLevel,
    LocalSgdConfig,
    ParallelConfig,
    ReplicasConfig,
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
    TrackerName,
)
from ddp_trainer.config.section import Section

__all__ = [
    "BatchSplit",
    "BufferPolicy",
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
    "ReplicasConfig",
    "RunConfig",
    "ScheduleConfig",
    "Section",
    "StrategyName",
    "TrackerName",
]
