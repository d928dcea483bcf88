"""Exponential moving average of the trained weights."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ddp_trainer.config import EmaConfig
from ddp_trainer.names import NamedTensors, parts_of, plain_name
from ddp_trainer.parallel.dtensor import copy_parts, local


class Ema:
    """Moving average of the weights, in fp32 and in their layout. Buffers are not averaged."""

    def __init__(self, model: nn.Module, config: EmaConfig, decay: float) -> None:
        """Start the average from the current weights.

        Args:
            model: The bare model, on its device.
            config: Whether the decay warms up.
            decay: Share of the old average that each update keeps, from 0 to 1.
        """
        self._decay = decay
        self._warmup = config.warmup
        named = model.named_parameters()
        self._params = {plain_name(name): param for name, param in named if param.requires_grad}
        self._average = {n: p.detach().clone().float() for n, p in self._params.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Move the average towards the weights.

        Args:
            step: Index of the update that produced the weights, from 0.
        """
        decay = min(self._decay, (1 + step) / (10 + step)) if self._warmup else self._decay
        weights = [local(param.detach()).float() for param in self._params.values()]
        average = [local(tensor) for tensor in self._average.values()]
        torch._foreach_lerp_(average, weights, 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Load the average into the model inside the context, and restore the weights after it."""
        kept = self._put_average()
        try:
            yield
        finally:
            self._put_weights(kept)

    def state(self) -> dict[str, Tensor]:
        """Return the average by parameter name, without copying it."""
        return dict(self._average)

    def load(self, saved: NamedTensors) -> None:
        """Load a saved average, in place, one tensor after another.

        Args:
            saved: Whole tensors by parameter name. For a missing name, the average starts at the
                current weights.
        """
        for name in self._average.keys() - {plain_name(name) for name in saved}:
            self._average[name].copy_(self._params[name].detach())
        for tensor in parts_of(saved):
            average = self._average.get(plain_name(tensor.name))
            if average is not None:
                copy_parts(average, tensor.parts)
            for _ in tensor.parts:  # Every rank must read what remains.
                pass

    @torch.no_grad()
    def _put_average(self) -> dict[str, Tensor]:
        """Load the average into the model. Return the weights that the average cannot hold."""
        kept = {}
        for name, param in self._params.items():
            # Swap one tensor at a time to avoid a second copy of the model. Between two types a
            # swap would round the weights or the average.
            weight = param.detach().clone()
            param.copy_(self._average[name])
            if weight.dtype == self._average[name].dtype:
                self._average[name].copy_(weight)
            else:
                kept[name] = weight
        return kept

    @torch.no_grad()
    def _put_weights(self, kept: dict[str, Tensor]) -> None:
        """Undo `_put_average`, whose result is given."""
        for name, param in self._params.items():
            if name in kept:
                param.copy_(kept[name])
                continue
            average = param.detach().clone()
            param.copy_(self._average[name])
            self._average[name].copy_(average)
