"""How ranks work together."""

from typing import Literal, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from ddp_trainer.config.section import Section

StrategyName = Literal["ddp", "zero1", "fsdp2"]
DebugLevel = Literal["off", "info", "detail"]

POWERSGD_EARLIEST = 2
"""DDP lays its buckets out anew after the first update, which error feedback would not survive."""
POWERSGD_START = 1000


class CompressionConfig(Section):
    """Smaller gradients on the wire."""

    name: Literal["none", "fp16", "bf16", "powersgd"] = "none"
    """What ranks exchange: gradients as they are, rounded, or as a product of two thin matrices."""
    start_step: NonNegativeInt | None = None
    """Update from which on it is used; 1000 for powersgd and 0 for the others when not stated."""
    rank: PositiveInt = 1
    """Columns of the thin matrices of powersgd: more are slower and nearer to the gradient."""
    adaptive: bool = False
    """Whether to wait until the measured share of waiting for communication is large enough."""
    share: float = Field(default=0.2, gt=0, lt=1)
    """Share of an update's time from which adaptive compression is used, to the end of the run."""

    @property
    def start(self) -> int:
        """Update from which on it may be used."""
        if self.start_step is not None:
            return self.start_step
        return POWERSGD_START if self.name == "powersgd" else 0

    @model_validator(mode="after")
    def _has_an_effect(self) -> Self:
        stated = self.changed()
        if self.name == "none":
            for key in sorted(stated - {"name"}):
                raise ValueError(f'"{key}" has no effect with none')
        if self.name != "powersgd" and "rank" in stated:
            raise ValueError(f'"rank" has no effect with {self.name}')
        if "share" in stated and not self.adaptive:
            raise ValueError('"share" has no effect without adaptive')
        if self.name == "powersgd" and self.start < POWERSGD_EARLIEST:
            raise ValueError(f'"start_step" must be {POWERSGD_EARLIEST} or more with powersgd')
        return self


class LocalSgdConfig(Section):
    """Ranks that train on their own for some updates and then average (post-local SGD)."""

    period: PositiveInt | None = None
    """Updates between two averages; ranks reduce every gradient when not stated."""
    start_step: NonNegativeInt = 0
    """Update before which every gradient is reduced."""

    @model_validator(mode="after")
    def _has_an_effect(self) -> Self:
        if self.period is None and "start_step" in self.changed():
            raise ValueError('"start_step" has no effect without period')
        return self


class ParallelConfig(Section):
    """How ranks work together."""

    strategy: StrategyName = "ddp"
    """What each rank holds: everything (ddp), its part of the optimizer's state (zero1), or its
    part of weights, gradients and that state (fsdp2). Checkpoints are the same."""
    timeout_seconds: PositiveInt = 600
    """Longest wait of one rank for the others before the attempt fails."""
    first_timeout_seconds: PositiveInt | None = None
    """The same until an attempt has done its first update, which connects and may compile;
    timeout_seconds when not stated."""
    debug: DebugLevel = "off"
    """What NCCL and torch log of how ranks connect; with detail, which is slow, torch also compares
    the collectives of all ranks before each (NCCL only). What the environment says comes first."""
    agree_seconds: PositiveFloat = 5.0
    """About how often ranks agree on whether to stop or to save, if no report comes sooner."""
    allow_mixed: bool = False
    """Whether ranks may have different versions of Python, torch, CUDA or NCCL, or other GPUs."""
    bucket_mb: PositiveInt = 25
    """Megabytes of gradients that are reduced in one piece."""
    find_unused_parameters: bool = False
    """Whether an update may leave parameters without a gradient; costs a walk of the graph."""
    static_graph: bool = False
    """Whether every update goes through the same parts of the model: what is unused is found out
    once, and activations may be recomputed in any way."""
    compression: CompressionConfig = CompressionConfig()
    local_sgd: LocalSgdConfig = LocalSgdConfig()

    @property
    def first_timeout(self) -> int:
        """Longest wait until an attempt's first update is done, in seconds."""
        return self.first_timeout_seconds or self.timeout_seconds

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.strategy == "fsdp2":
            of_ddp = {"bucket_mb", "find_unused_parameters", "static_graph"}
            for key in sorted(of_ddp & self.changed()):
                raise ValueError(f'"{key}" has no effect with fsdp2')
            if self.compression.name != "none":
                raise ValueError('"compression" needs strategy ddp or zero1')
        if self.static_graph and self.find_unused_parameters:
            raise ValueError('"find_unused_parameters" has no effect with static_graph')
        if self.local_sgd.period is not None:
            if self.strategy != "ddp":
                raise ValueError('"local_sgd" needs strategy ddp')
            if self.compression.name != "none":
                raise ValueError('"local_sgd" and "compression" exclude each other')
        return self
