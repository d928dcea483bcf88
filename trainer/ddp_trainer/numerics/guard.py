"""Find gradients that are not finite, without extra cost, and treat them on all ranks alike.

Each update divides the gradients by the global count. torch's unscaling kernel divides, and also
flags values that are not finite, in one pass. Reduced gradients are equal on all ranks, so each
rank gets the same flag. The host reads the flags with the next report.
"""

from typing import Literal

import torch
from torch import Tensor

from ddp_trainer.config import NonFiniteConfig
from ddp_trainer.errors import ReportedError
from ddp_trainer.parallel.strategy import Strategy
from ddp_trainer.saved_state import NonFiniteCounts

Policy = Literal["skip", "stop", "rollback"]

_TINY = torch.finfo(torch.float32).tiny


class NonFiniteError(ReportedError):
    """Error for gradients that are not finite, if the policy is to end the attempt."""


class Guard:
    """Division of gradients, and protection of the weights from gradients that are not finite.

    A fused optimizer reads the flag on the device and skips the update. For other optimizers the
    host must read the flag at each update, which happens with the policy `skip` only. With any
    other policy this update destroys the weights, and no checkpoint is saved until the host reads
    the flag.
    """

    def __init__(
        self, strategy: Strategy, optimizer: torch.optim.Optimizer, policy: Policy | None
    ) -> None:
        """Guard the updates of one optimizer.

        Args:
            strategy: Strategy of the run.
            optimizer: Optimizer whose updates are guarded.
            policy: Configured policy. By default `skip` for a fused optimizer, else `stop`.
        """
        # The same attribute tells torch's GradScaler that the optimizer reads the flag itself.
        on_device = bool(getattr(optimizer, "_step_supports_amp_scaling", False))
        self.policy: Policy = policy or ("skip" if on_device else "stop")
        self.protects = on_device or self.policy == "skip"
        """Whether an update with non-finite gradients leaves the weights unchanged."""
        self._on_device = on_device
        self._strategy = strategy
        self._optimizer = optimizer
        self.nonfinite = torch.zeros((), device=strategy.device)
        """1 if the gradients of the newest update were not finite, else 0."""

    def divide(self, gradients: list[Tensor], count: Tensor) -> None:
        """Divide gradients of sums by the count, in place, and flag values that are not finite.

        Args:
            gradients: Reduced gradients.
            count: Scalar on the device. If it is zero, all gradients become zero. If it is not
                finite, the update is flagged.
        """
        inverse = torch.where(count > 0, count.clamp_min(_TINY).reciprocal(), 0.0)
        self.nonfinite.zero_()
        parts = self._strategy.local_parts(gradients)
        for alike in _by_dtype(parts):
            exact = alike[0].dtype == torch.float64
            factor = torch.ones_like(inverse) if exact else inverse
            torch._amp_foreach_non_finite_check_and_unscale_(alike, self.nonfinite, factor)
            if exact:  # The kernel takes only an fp32 factor, which would round the quotients.
                torch._foreach_div_(alike, _divisor(count))
        # The inverse of an infinite count is 0, which would make all gradients zero unnoticed.
        self.nonfinite.masked_fill_(~count.isfinite().all(), 1.0)
        self._strategy.any(self.nonfinite)

    def step(self, scaler: torch.amp.GradScaler) -> None:
        """Run the optimizer step, unless the gradients are not finite.

        Args:
            scaler: Gradient scaler. If enabled, the scaler decides by its own flags, to which this
                function adds the guard's flag.
        """
        if scaler.is_enabled():
            # The scaler checks only gradients, not the count.
            for flag in scaler._found_inf_per_device(self._optimizer).values():  # noqa: SLF001
                flag.copy_(torch.maximum(flag, self.nonfinite))
            scaler.step(self._optimizer)
            scaler.update()
        elif self._on_device:
            # GradScaler hands the flag to a fused optimizer in these two attributes, too.
            vars(self._optimizer).update(grad_scale=None, found_inf=self.nonfinite)
            self._optimizer.step()
        elif not (self.protects and self.nonfinite.item()):
            self._optimizer.step()


def _divisor(count: Tensor) -> Tensor:
    """Return the count as an fp64 divisor without dimensions. A count of zero becomes infinity."""
    return torch.where(count > 0, count, torch.inf).double().squeeze()


def _by_dtype(tensors: list[Tensor]) -> list[list[Tensor]]:
    """Return groups of tensors for kernels that take one data type at a time."""
    dtypes = {tensor.dtype for tensor in tensors}
    if len(dtypes) == 1:
        return [tensors]
    return [[tensor for tensor in tensors if tensor.dtype == dtype] for dtype in dtypes]


class NonFiniteTracker:
    """Counter of updates with non-finite gradients. It decides the reaction on all ranks alike."""

    def __init__(self, config: NonFiniteConfig, policy: Policy, saved: NonFiniteCounts) -> None:
        """Continue the counts of an earlier attempt.

        Args:
            config: Limits of the reaction.
            policy: Policy for non-finite gradients.
            saved: Counts in the checkpoint, or zeros.
        """
        self._config = config
        self._policy = policy
        self._in_row = 0
        self.updates = saved.updates
        """Updates of the run with non-finite gradients."""
        self.rollbacks = saved.rollbacks

    def counts(self) -> NonFiniteCounts:
        """Return the counts, for the checkpoint."""
        return NonFiniteCounts(updates=self.updates, rollbacks=self.rollbacks)

    def assess(self, step: int, found: int, updates: int) -> str | None:
        """Decide the reaction to the updates since the last report.

        Args:
            step: Number of completed updates.
            found: Number of updates since the last report with non-finite gradients.
            updates: Updates since the last report.

        Returns:
            A sentence for a warning, or None. With the policy `rollback` a sentence also means that
            the caller must restore the newest checkpoint.

        Raises:
            NonFiniteError: The policy ends the attempt.
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
                    f"training: {what}, and {self._in_row} updates in a row had such gradients"
                    f" (nonfinite.patience is {self._config.patience})"
                )
            return f"{what}: the optimizer skipped them"
        self.rollbacks += 1
        if self.rollbacks > self._config.rollbacks:
            raise NonFiniteError(
                f"training: {what}, after {self._config.rollbacks} rollbacks (nonfinite.rollbacks)"
            )
        return f"{what}: the weights are restored from the newest checkpoint"
