"""Gradients that are not finite: seen at no cost, and answered alike on all ranks.

The gradients are divided by the global count anyway. torch's kernel for unscaling does that and
looks for values that are not finite in the same pass. Reduced gradients are equal on all ranks, so
each rank finds the same; the host learns of it with the next report.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from ddp_trainer.config import NonFiniteConfig
from ddp_trainer.errors import Refusal
from ddp_trainer.numerics.update import FusedUpdate, make_by_torch
from ddp_trainer.parallel.strategy import Strategy

Policy = Literal["skip", "stop", "rollback"]

_FLAGS = 64
_TINY = torch.finfo(torch.float32).tiny


class NonFiniteError(Refusal):
    """Gradients were not finite, and the policy says that the attempt ends."""


class Guard:
    """Divides gradients, watches them, and keeps an update from being made with broken ones.

    A fused optimizer reads the flag on the device and leaves everything as it was. For others the
    host has to read the flag at each update, which is done for the policy `skip` only; with the
    other policies the weights are lost with the update, and nothing is saved until that is seen.
    """

    def __init__(
        self,
        strategy: Strategy,
        optimizer: torch.optim.Optimizer,
        policy: Policy | None,
        *,
        bundled: bool,
    ) -> None:
        """Begins with the next update.

        Args:
            strategy: In force.
            optimizer: Whose updates are watched.
            policy: As configured; without one, what the optimizer can do decides.
            bundled: Whether it is one of the trainer's own, which nobody changes: a task's may have
                hooks, or a step of its own.
        """
        on_device = bool(getattr(optimizer, "_step_supports_amp_scaling", False))
        self.policy: Policy = policy or ("skip" if on_device else "stop")
        self.protects = on_device or self.policy == "skip"
        """Whether weights stay as they were when an update is not finite."""
        self._on_device = on_device
        self._reads_flag = self.protects and not on_device
        self._strategy = strategy
        self._optimizer = optimizer
        self._make = FusedUpdate(optimizer).make if bundled else partial(make_by_torch, optimizer)
        self._flags = _flags(strategy.device)
        self.found = next(self._flags)
        """1 if the newest update was not finite, else 0."""

    def divide(self, gradients: list[Tensor], count: Tensor) -> None:
        """Divides gradients of sums, in place, and notes whether all values are finite.

        Args:
            gradients: As they were reduced.
            count: Scalar, on the device; nothing is divided where nothing was counted.
        """
        inverse = count.clamp_min(_TINY).reciprocal_()
        self.found = next(self._flags)
        parts = self._strategy.memory(gradients)
        kinds = {part.dtype for part in parts}
        for kind in kinds:
            alike = parts if len(kinds) == 1 else [p for p in parts if p.dtype == kind]
            torch._amp_foreach_non_finite_check_and_unscale_(alike, self.found, inverse)
        self._strategy.any(self.found)

    def step(self, scaler: torch.amp.GradScaler) -> None:
        """Makes the update, unless its gradients are not finite.

        Args:
            scaler: Has its own flag, from before the division, when it is in use.
        """
        if scaler.is_enabled():
            scaler.step(self._optimizer)
            scaler.update()
        elif self._on_device:
            self._make(self.found)
        elif not (self._reads_flag and self.found.item()):
            self._optimizer.step()


def _flags(device: torch.device) -> Iterator[Tensor]:
    """Zeros without end, each a scalar; made many at a time."""
    while True:
        yield from torch.zeros(_FLAGS, device=device).unbind()


class Verdicts:
    """What follows from updates that were not finite; the same on all ranks, as their facts are."""

    def __init__(self, config: NonFiniteConfig, policy: Policy, state: dict[str, Any]) -> None:
        """Goes on from an earlier attempt.

        Args:
            config: How much is borne.
            policy: The policy in force.
            state: Of the checkpoint, or empty.
        """
        saved = state.get("nonfinite", {})
        self._config = config
        self._policy = policy
        self._in_row = 0
        self.updates = saved.get("updates", 0)
        """Updates of the run that were not finite."""
        self.rollbacks = saved.get("rollbacks", 0)

    def state(self) -> dict[str, int]:
        """JSON, for the checkpoint."""
        return {"updates": self.updates, "rollbacks": self.rollbacks}

    def judge(self, step: int, found: int, updates: int) -> str | None:
        """What to do after some updates.

        Args:
            step: Updates done.
            found: How many of the newest were not finite.
            updates: How many the newest are: those since the last report.

        Returns:
            A sentence for a warning; with the policy `rollback` the weights must be taken back.

        Raises:
            NonFiniteError: The attempt ends.
        """
        self._in_row = self._in_row + updates if found >= updates else 0
        if not found:
            return None
        self.updates += found
        what = f"{found} of {updates} updates up to step {step} had gradients that are not finite"
        if self._policy == "stop":
            raise NonFiniteError(f"training: {what}")
        if self._policy == "skip":
            if self._in_row >= self._config.patience:
                raise NonFiniteError(
                    f"training: {what}, like {self._in_row} in a row (nonfinite.patience is"
                    f" {self._config.patience})"
                )
            return f"{what}: they were skipped"
        self.rollbacks += 1
        if self.rollbacks > self._config.rollbacks:
            raise NonFiniteError(
                f"training: {what}, after {self._config.rollbacks} rollbacks (nonfinite.rollbacks)"
            )
        return f"{what}: the weights are those of the newest checkpoint again"
