"""A moving average of the weights, kept beside those that are trained."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ddp_trainer.config import EmaConfig
from ddp_trainer.parallel.dtensor import laid_out_like, local


class Ema:
    """The average, in fp32, laid out as the weights are. Buffers are not averaged."""

    def __init__(self, model: nn.Module, config: EmaConfig, decay: float) -> None:
        """Begins with the weights as they are.

        Args:
            model: The bare model, on its device.
            config: Whether to follow faster at first.
            decay: Part of the average that stays at each update.
        """
        self._decay = decay
        self._warmup = config.warmup
        self._params = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self._average = {n: p.detach().clone().float() for n, p in self._params.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Moves the average towards the weights.

        Args:
            step: Index of the update that the weights come from, from 0.
        """
        decay = min(self._decay, (1 + step) / (10 + step)) if self._warmup else self._decay
        weights = [local(param.detach()).float() for param in self._params.values()]
        average = [local(tensor) for tensor in self._average.values()]
        torch._foreach_lerp_(average, weights, 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The model computes with the average inside, and has its own weights back afterwards."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def state(self) -> dict[str, Tensor]:
        """The average by parameter name; not a copy."""
        return dict(self._average)

    def load(self, saved: dict[str, Tensor]) -> None:
        """Takes a saved average up, in place.

        Args:
            saved: Whole tensors by parameter name; what is missing begins with the weights.
        """
        for name, average in self._average.items():
            source = saved.get(name)
            param = self._params[name].detach()
            average.copy_(param if source is None else laid_out_like(source, average))

    @torch.no_grad()
    def _exchange(self) -> None:
        # One tensor at a time, so that no second copy of the model is needed.
        for name, param in self._params.items():
            weight = param.detach().clone()
            param.copy_(self._average[name])
            self._average[name].copy_(weight)
