"""How the model learns: update rule, learning rate, averaged weights, what is not finite."""

from typing import Literal, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from ddp_trainer.config.section import Section


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
        for key in sorted(foreign & self.changed()):
            raise ValueError(f'"{key}" has no effect with {self.name}')
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError('"betas" must lie between 0 and 1')
        if self.nesterov and self.momentum == 0:
            raise ValueError('"nesterov" needs a momentum greater than 0')
        return self


class ScheduleConfig(Section):
    """The learning rate as a function of the update: a linear warm-up, then a decay."""

    name: Literal["cosine", "linear", "wsd", "constant"] = "cosine"
    """Shape of the decay; wsd (warm-up, stable, decay) falls linearly at the end only."""
    warmup_steps: NonNegativeInt | None = None
    """Updates until the peak is reached; one in twenty of all updates when not stated."""
    decay_steps: PositiveInt | None = None
    """Updates of the fall of wsd; one in five of all updates when not stated."""
    final_fraction: float = Field(default=0.0, ge=0, le=1)
    """Learning rate at the end, as a fraction of the peak."""
    base_batch: PositiveInt | None = None
    """Global batch for which the learning rate is meant; the peak then follows `global_batch`."""
    scaling: Literal["linear", "sqrt"] = "linear"
    """How the peak follows: by the batch's ratio to `base_batch`, or by its square root."""

    @model_validator(mode="after")
    def _has_an_effect(self) -> Self:
        stated = self.changed()
        if self.name == "constant" and "final_fraction" in stated:
            raise ValueError('"final_fraction" has no effect with constant')
        if self.name != "wsd" and self.decay_steps is not None:
            raise ValueError(f'"decay_steps" has no effect with {self.name}')
        if self.base_batch is None and "scaling" in stated:
            raise ValueError('"scaling" has no effect without base_batch')
        return self


class EmaConfig(Section):
    """A moving average of the weights beside those that are trained."""

    decay: float | None = Field(default=None, gt=0, lt=1)
    """Part of the average that stays at each update, as 0.999; no average when not stated."""
    warmup: bool = True
    """Whether the average follows faster at first: with at most (1 + updates) / (10 + updates)."""
    evaluate: bool = True
    """Whether evaluations use the average."""

    @model_validator(mode="after")
    def _has_an_effect(self) -> Self:
        for key in sorted({"warmup", "evaluate"} & self.changed()):
            if self.decay is None:
                raise ValueError(f'"{key}" has no effect without decay')
        return self


class NonFiniteConfig(Section):
    """What happens when a gradient has infinite values or is not a number; alike on all ranks."""

    policy: Literal["skip", "stop", "rollback"] | None = None
    """Skip the update, fail the attempt, or return to the weights of the newest checkpoint and go
    on with the next data; skip when not stated, or stop where the task's own optimizer cannot skip
    on the device."""
    patience: PositiveInt = 50
    """About how many updates in a row may be skipped before the attempt fails."""
    rollbacks: PositiveInt = 3
    """How often a run may roll back before the attempt fails."""

    @model_validator(mode="after")
    def _has_an_effect(self) -> Self:
        foreign = {"rollback": {"patience"}, "stop": {"patience", "rollbacks"}}
        for key in sorted(foreign.get(self.policy or "skip", {"rollbacks"}) & self.changed()):
            raise ValueError(f'"{key}" has no effect with policy {self.policy or "skip"}')
        return self
