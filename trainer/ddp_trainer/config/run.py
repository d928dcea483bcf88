"""A whole run."""

from dataclasses import dataclass
from typing import Literal, Self

from pydantic import Field, JsonValue, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from ddp_trainer.config.learning import (
    EmaConfig,
    NonFiniteConfig,
    OptimizerConfig,
    ScheduleConfig,
)
from ddp_trainer.config.parallel import ParallelConfig
from ddp_trainer.config.section import Section
from ddp_trainer.errors import InputError

Precision = Literal["fp64", "fp32", "tf32", "bf16", "fp16"]
Device = Literal["auto", "cpu", "cuda"]


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


class LogConfig(Section):
    """What is reported."""

    every_steps: PositiveInt = 10
    """Updates between two progress lines."""
    all_ranks: bool = False
    """Whether every rank prints progress lines with its own times, not only rank 0."""
    peak_tflops: PositiveFloat | None = None
    """What a device can do at most at the run's precision, in TFLOP/s: progress lines then state
    the part of it that the model uses, if the task knows its `flops_per_sample`."""


class RunConfig(Section):
    """One run, from first update to summary."""

    epochs: PositiveInt | None = None
    """Passes over the training data; one when neither this nor max_steps is stated."""
    max_steps: PositiveInt | None = None
    """Updates after which the run is complete, even within an epoch."""
    max_seconds: PositiveFloat | None = None
    """Seconds of training, over all attempts, after which the run is complete."""
    global_batch: PositiveInt = 32
    """Samples per update, over all ranks."""
    micro_batch: PositiveInt | None = None
    """Samples per rank in one forward pass; its whole share of the update when not stated."""
    precision: Precision = "fp32"
    """Arithmetic of forward and backward pass; weights are kept in fp32, but in fp64 for fp64."""
    clip_norm: PositiveFloat | None = None
    """Largest norm of the gradient; not clipped when not stated."""
    sync_batch_norm: bool = False
    """Whether BatchNorm normalises by the samples of all ranks in training; CUDA only."""
    channels_last: bool = False
    """Whether images lie channel by channel within a pixel, which CUDA's convolutions prefer."""
    compile: bool = False
    """Whether torch.compile translates the model before it is wrapped."""
    deterministic: bool = False
    """Whether only algorithms are used that give the same bits each time; slower."""
    init_from: str | None = None
    """Weights to begin with, without a position: a safetensors file, a checkpoint or a run."""
    init_strict: bool = True
    """Whether those weights must fit name by name; what does not fit is only reported otherwise."""
    eval_every_steps: PositiveInt | None = None
    """Updates between two evaluations; after every epoch when not stated, and at the end."""
    collect_every_steps: PositiveInt = 50
    """Updates between two collections of Python's garbage, at the same update on all ranks."""
    seed: NonNegativeInt = 0
    """Root of all randomness."""
    device: Device = "auto"
    """Where to compute; auto takes CUDA when there is any."""
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    ema: EmaConfig = EmaConfig()
    nonfinite: NonFiniteConfig = NonFiniteConfig()
    data: DataConfig = DataConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    parallel: ParallelConfig = ParallelConfig()
    log: LogConfig = LogConfig()
    task: dict[str, JsonValue] = Field(default_factory=dict)
    """The task's own settings."""

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.init_from is None and "init_strict" in self.changed():
            raise ValueError('"init_strict" has no effect without init_from')
        if self.precision == "fp16" and self.parallel.local_sgd.period is not None:
            raise ValueError(
                "parallel.local_sgd excludes fp16: each rank would scale its loss differently"
            )
        if self.precision == "fp16":
            if self.parallel.strategy != "ddp":
                raise ValueError("precision fp16 needs parallel.strategy ddp; bf16 goes with all")
            if self.nonfinite.policy in ("stop", "rollback"):
                raise ValueError(
                    "nonfinite.policy must be skip with precision fp16: its loss scale is found by"
                    " overflows"
                )
        if self.nonfinite.policy == "rollback" and self.checkpoint.directory is None:
            raise ValueError("nonfinite.policy rollback needs checkpoint.directory")
        return self

    def batch_split(self, world_size: int) -> "BatchSplit":
        """Divides `global_batch` among ranks and forward passes.

        Args:
            world_size: Number of ranks.

        Raises:
            InputError: If it does not divide.
        """
        share, rest = divmod(self.global_batch, world_size)
        if rest:
            raise InputError(
                f"config: global_batch {self.global_batch} must be a multiple of the world size"
                f" {world_size}"
            )
        micro = self.micro_batch or share
        if share % micro:
            raise InputError(
                f"config: micro_batch {micro} must divide {share}, one rank's samples of an update"
                f" (global_batch {self.global_batch} at world size {world_size})"
            )
        return BatchSplit(per_rank=share, micro_batch=micro, accumulation=share // micro)


@dataclass(frozen=True, slots=True)
class BatchSplit:
    """How one update is divided; all counts are samples but `accumulation`."""

    per_rank: int
    micro_batch: int
    accumulation: int
    """Forward passes per rank and update."""
