"""Settings of distributed training: strategy, timeouts and communication."""

from typing import Literal, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from ddp_trainer.config.section import Section, no_effect

StrategyName = Literal["ddp", "zero1", "fsdp2"]
BufferPolicy = Literal["broadcast", "average", "per_rank"]
DebugLevel = Literal["off", "info", "detail"]

POWERSGD_EARLIEST = 2
"""Earliest update that can use PowerSGD. DDP rebuilds its buckets after the first update, which
would invalidate the error feedback."""
POWERSGD_START = 1000
"""Default first update that uses PowerSGD."""


class CompressionConfig(Section):
    """Compression of gradients during their reduction."""

    name: Literal["none", "fp16", "bf16", "powersgd"] = "none"
    """Compression of gradients: none, rounding (fp16, bf16) or low-rank matrices (powersgd)."""
    start_step: NonNegativeInt | None = None
    """First update that uses compression. Default: 1000 for powersgd, 0 for the other methods."""
    rank: PositiveInt = 1
    """Rank of the powersgd matrices. A higher rank is slower and approximates gradients better."""
    adaptive: bool = False
    """Whether compression starts only when the measured wait for communication reaches `share`."""
    share: float = Field(default=0.2, gt=0, lt=1)
    """Share of an update's time, from 0 to 1, at which adaptive compression starts. Compression
    then stays on."""

    @property
    def start(self) -> int:
        """First update that may use compression."""
        if self.start_step is not None:
            return self.start_step
        return POWERSGD_START if self.name == "powersgd" else 0

    @model_validator(mode="after")
    def _check_settings_have_effect(self) -> Self:
        changed = self.changed()
        if self.name == "none":
            for key in sorted(changed - {"name"}):
                raise ValueError(no_effect(key, "with none"))
        if self.name != "powersgd" and "rank" in changed:
            raise ValueError(no_effect("rank", f"with {self.name}"))
        if "share" in changed and not self.adaptive:
            raise ValueError(no_effect("share", "without adaptive"))
        if self.name == "powersgd" and self.start < POWERSGD_EARLIEST:
            raise ValueError(f'"start_step" must be {POWERSGD_EARLIEST} or more with powersgd')
        return self


class LocalSgdConfig(Section):
    """Post-local SGD: ranks make some updates independently and then average their weights."""

    period: PositiveInt | None = None
    """Number of updates between two averages. Default: no local SGD; the ranks reduce every
    gradient."""
    start_step: NonNegativeInt = 0
    """First update that uses local SGD. Before this update, the ranks reduce every gradient."""

    @model_validator(mode="after")
    def _check_settings_have_effect(self) -> Self:
        if self.period is None and "start_step" in self.changed():
            raise ValueError(no_effect("start_step", "without period"))
        return self


class ReplicasConfig(Section):
    """Comparison of the state that must be equal on all ranks, to find silent corruption."""

    every_steps: NonNegativeInt = 100
    """Maximum number of updates between two comparisons. The ranks also compare before each
    checkpoint and each evaluation. 0 turns all comparisons off."""
    policy: Literal["rollback", "stop"] = "rollback"
    """Reaction to a difference. Both end the attempt. rollback: the next attempt resumes from the
    newest checkpoint, which was compared before it was saved. stop: the operator starts no other
    attempt."""

    @model_validator(mode="after")
    def _check_settings_have_effect(self) -> Self:
        if self.every_steps == 0 and "policy" in self.changed():
            raise ValueError(no_effect("policy", "with every_steps 0"))
        return self


class ParallelConfig(Section):
    """Settings of distributed training."""

    strategy: StrategyName = "ddp"
    """State that is divided among the ranks: none (ddp), optimizer state (zero1), or weights,
    gradients and optimizer state (fsdp2). All strategies can read each other's checkpoints."""
    timeout_seconds: PositiveInt = 600
    """Maximum seconds that one rank waits for the other ranks before the attempt fails."""
    first_timeout_seconds: PositiveInt | None = None
    """Timeout in seconds for the first update of an attempt, which connects the ranks and may
    compile. Default: timeout_seconds."""
    debug: DebugLevel = "off"
    """Amount of NCCL's and torch's log messages about communication. detail is slow: with NCCL,
    torch also compares all ranks' collectives before each one. Sets NCCL_DEBUG and
    TORCH_DISTRIBUTED_DEBUG unless they are already set."""
    agree_seconds: PositiveFloat = 5.0
    """Approximate seconds between two exchanges in which all ranks decide whether to stop or
    save."""
    allow_mixed: bool = False
    """Whether ranks may have different GPU models, or different versions of driver, Python, torch,
    CUDA or NCCL."""
    bucket_mb: PositiveInt | None = None
    """Size of a gradient bucket in megabytes. Each bucket is reduced at once. By default torch uses
    25, but 1 for the first bucket, so that the reduction begins early."""
    find_unused_parameters: bool = False
    """Whether an update may leave parameters without a gradient. This costs a graph traversal and
    one more reduction. With fsdp2 the whole model is then gathered at once."""
    full_gradients: bool = False
    """Whether each rank accumulates whole gradients with fsdp2 and reduces them once per update.
    This saves reductions, but needs memory for all gradients. By default every micro-batch
    reduces."""
    static_graph: bool = False
    """Whether every update uses the same parts of the model. DDP then finds unused parameters only
    once, and every form of activation checkpointing works."""
    buffers: BufferPolicy = "broadcast"
    """Policy for buffers that the loss changes, for example codebooks, queues and running
    normalisers. broadcast: all ranks use rank 0's buffers after each update. average: all ranks use
    the mean. per_rank: each rank keeps and saves its own. BatchNorm is not affected."""
    compression: CompressionConfig = CompressionConfig()
    local_sgd: LocalSgdConfig = LocalSgdConfig()

    @property
    def first_timeout(self) -> int:
        """Timeout in seconds for the first update of an attempt."""
        return self.first_timeout_seconds or self.timeout_seconds

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        if self.strategy == "fsdp2":
            of_ddp = {"bucket_mb", "static_graph"}
            for key in sorted(of_ddp & self.changed()):
                raise ValueError(no_effect(key, "with fsdp2"))
            if self.compression.name != "none":
                raise ValueError('"compression" requires strategy ddp or zero1')
        elif self.full_gradients:
            raise ValueError(no_effect("full_gradients", f"with {self.strategy}"))
        if self.static_graph and self.find_unused_parameters:
            raise ValueError(no_effect("find_unused_parameters", "with static_graph"))
        if self.local_sgd.period is not None:
            if self.strategy != "ddp":
                raise ValueError('"local_sgd" requires strategy ddp')
            if self.compression.name != "none":
                raise ValueError('"local_sgd" and "compression" cannot be combined')
        return self
