"""Every setting of a run: typed, with its default and its sentence. Imports no torch.

A run is described by one frozen `RunConfig`. The settings of the task itself live in the section
`task` and are typed by the task's own model, so they are kept here as the plain document that the
user gave until the task has been imported.
"""

from dataclasses import dataclass
from typing import Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from ddp_trainer.errors import InputError

Precision = Literal["fp32", "tf32", "bf16", "fp16"]
Device = Literal["auto", "cpu", "cuda"]


class Section(BaseModel):
    """Base of all sections: frozen, strict about types, and closed to unknown keys."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )


class OptimizerConfig(Section):
    """The update rule, for tasks that do not bring their own."""

    name: Literal["adamw", "sgd"] = "adamw"
    """Update rule."""
    lr: PositiveFloat = 3e-3
    """Peak learning rate."""
    weight_decay: NonNegativeFloat = 0.01
    """Decay of weights with two or more dimensions; biases and norm scales are not decayed."""
    betas: tuple[float, float] = (0.9, 0.99)
    """Decay rates of the two moments of adamw."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Momentum of sgd."""
    nesterov: bool = True
    """Whether sgd looks ahead."""

    @model_validator(mode="after")
    def _has_an_effect(self) -> Self:
        foreign = {"adamw": {"momentum", "nesterov"}, "sgd": {"betas"}}[self.name]
        for key in sorted(foreign & self.model_fields_set):
            raise ValueError(f'"{key}" has no effect with {self.name}')
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError('"betas" must lie between 0 and 1')
        if self.nesterov and self.momentum == 0:
            raise ValueError('"nesterov" needs a momentum greater than 0')
        return self


class ScheduleConfig(Section):
    """The learning rate as a function of the update: a linear warm-up, then a decay."""

    name: Literal["cosine", "linear", "constant"] = "cosine"
    """Shape of the decay."""
    warmup_steps: NonNegativeInt | None = None
    """Updates until the peak is reached; one in twenty of all updates when not stated."""
    final_fraction: float = Field(default=0.0, ge=0, le=1)
    """Learning rate at the end, as a fraction of the peak."""

    @model_validator(mode="after")
    def _has_an_effect(self) -> Self:
        if self.name == "constant" and "final_fraction" in self.model_fields_set:
            raise ValueError('"final_fraction" has no effect with constant')
        return self


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


class ParallelConfig(Section):
    """How ranks work together."""

    timeout_seconds: PositiveInt = 600
    """Longest wait of one rank for the others before the attempt fails."""
    agree_seconds: PositiveFloat = 5.0
    """About how often ranks agree on whether to stop or to save, if no report comes sooner."""
    bucket_mb: PositiveInt = 25
    """Megabytes of gradients that are reduced in one piece."""
    find_unused_parameters: bool = False
    """Whether an update may leave parameters without a gradient; costs a walk of the graph."""


class LogConfig(Section):
    """What is reported."""

    every_steps: PositiveInt = 10
    """Updates between two progress lines."""


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
    """Arithmetic of forward and backward pass; weights are kept in fp32."""
    clip_norm: PositiveFloat | None = None
    """Largest norm of the gradient; not clipped when not stated."""
    eval_every_steps: PositiveInt | None = None
    """Updates between two evaluations; after every epoch when not stated, and at the end."""
    seed: NonNegativeInt = 0
    """Root of all randomness."""
    device: Device = "auto"
    """Where to compute; auto takes CUDA when there is any."""
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    data: DataConfig = DataConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    parallel: ParallelConfig = ParallelConfig()
    log: LogConfig = LogConfig()
    task: dict[str, JsonValue] = Field(default_factory=dict)
    """The task's own settings."""

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
