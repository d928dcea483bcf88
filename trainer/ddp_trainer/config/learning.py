"""Settings of the optimizer, the learning rate, the moving average and non-finite gradients."""

from typing import Literal, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from ddp_trainer.config.section import Section, no_effect


class OptimizerConfig(Section):
    """Settings of the optimizer, for tasks that do not create their own."""

    name: Literal["adamw", "sgd"] = "adamw"
    """Optimizer: adamw or sgd."""
    lr: PositiveFloat = 3e-3
    """Peak learning rate."""
    weight_decay: NonNegativeFloat = 0.01
    """Weight decay of parameters with two or more dimensions. Biases and norm scales have none."""
    betas: tuple[float, float] = (0.9, 0.99)
    """Decay rates of the first and second moment of adamw, from 0 to below 1."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Momentum of sgd, from 0 to below 1."""
    nesterov: bool = True
    """Whether sgd uses Nesterov momentum."""

    @model_validator(mode="after")
    def _check_settings_have_effect(self) -> Self:
        foreign = {"adamw": {"momentum", "nesterov"}, "sgd": {"betas"}}[self.name]
        for key in sorted(foreign & self.changed()):
            raise ValueError(no_effect(key, f"with {self.name}"))
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError('"betas" must lie between 0 and 1')
        if self.nesterov and self.momentum == 0:
            raise ValueError('"nesterov" requires a momentum greater than 0')
        return self


class ScheduleConfig(Section):
    """Learning rate as a function of the update: a linear warm-up, then a decay."""

    name: Literal["cosine", "linear", "wsd", "constant"] = "cosine"
    """Shape of the decay. wsd (warm-up, stable, decay) only decays at the end, linearly."""
    warmup_steps: NonNegativeInt | None = None
    """Number of updates until the learning rate reaches its peak. Default: 1/20 of all updates."""
    decay_steps: PositiveInt | None = None
    """Number of updates in the final decay of wsd. Default: 1/5 of all updates."""
    final_fraction: float = Field(default=0.0, ge=0, le=1)
    """Final learning rate, as a fraction of the peak from 0 to 1."""
    base_batch: PositiveInt | None = None
    """Global batch for which optimizer.lr was tuned. If set, the peak is scaled to global_batch."""
    scaling: Literal["linear", "sqrt"] = "linear"
    """Scaling rule for the peak: by global_batch / base_batch (linear), or by its square root
    (sqrt)."""

    @model_validator(mode="after")
    def _check_settings_have_effect(self) -> Self:
        changed = self.changed()
        if self.name == "constant" and "final_fraction" in changed:
            raise ValueError(no_effect("final_fraction", "with constant"))
        if self.name != "wsd" and self.decay_steps is not None:
            raise ValueError(no_effect("decay_steps", f"with {self.name}"))
        if self.base_batch is None and "scaling" in changed:
            raise ValueError(no_effect("scaling", "without base_batch"))
        return self


class EmaConfig(Section):
    """Exponential moving average (EMA) of the weights, kept beside the trained weights."""

    decay: float | None = Field(default=None, gt=0, lt=1)
    """Decay of the average per update, for example 0.999. Default: no average is kept."""
    warmup: bool = True
    """Whether to limit the decay to (1 + updates) / (10 + updates), so that early weights soon lose
    their influence."""
    evaluate: bool = True
    """Whether evaluations use the averaged weights."""

    @model_validator(mode="after")
    def _check_settings_have_effect(self) -> Self:
        for key in sorted({"warmup", "evaluate"} & self.changed()):
            if self.decay is None:
                raise ValueError(no_effect(key, "without decay"))
        return self


class NonFiniteConfig(Section):
    """Reaction to gradients with infinite or NaN values. All ranks react in the same way."""

    policy: Literal["skip", "stop", "rollback"] | None = None
    """Reaction to a non-finite gradient: skip the update, stop (fail the attempt), or rollback
    (restore the weights of the newest checkpoint and continue with the next data). Default: skip,
    or stop if the task's own optimizer cannot skip an update on the device."""
    patience: PositiveInt = 50
    """Approximate number of consecutive skipped updates after which the attempt fails."""
    rollbacks: PositiveInt = 3
    """Maximum number of rollbacks per run. The attempt fails when another one would be needed."""

    @model_validator(mode="after")
    def _check_settings_have_effect(self) -> Self:
        foreign = {"rollback": {"patience"}, "stop": {"patience", "rollbacks"}}
        for key in sorted(foreign.get(self.policy or "skip", {"rollbacks"}) & self.changed()):
            raise ValueError(no_effect(key, f"with policy {self.policy or 'skip'}"))
        return self
