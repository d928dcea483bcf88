"""Handle gradients with fsdp2 when an update may leave weights without a gradient.

torch reduces only the gradients that a rank has. If ranks had gradients of different weights, their
reductions would not match and would fail. So each backward pass starts with zeros. After the last
pass the ranks find the weights that no pass on any rank has used, and drop their gradients, as ddp
does.
"""

from collections.abc import Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn


class UnusedWeights:
    """The weights that an update has used so far on this rank."""

    def __init__(self, model: nn.Module) -> None:
        """Record which weights of a model are used.

        Args:
            model: The bare model, which gathers all its weights together.
        """
        self._model = model
        self._used: set[int] = set()
        self._watched = False

    def before_backward(self) -> None:
        """Set the gradients of the gathered weights to zero before the backward pass."""
        params = [param for param in self._model.parameters() if param.requires_grad]
        if not self._watched:
            # The gathered weights are the same objects in each pass.
            for number, param in enumerate(params):
                param.register_post_accumulate_grad_hook(partial(self._note, number))
            self._watched = True
        for param in params:
            if param.grad is None:
                param.grad = torch.zeros_like(param)

    def drop(self, params: Sequence[nn.Parameter]) -> None:
        """Drop the gradients of weights that no rank has used. Every rank must call this.

        Args:
            params: The trained parameters, in the order of the model.
        """
        flags = torch.tensor([float(number in self._used) for number in range(len(params))])
        flags = flags.to(params[0].device)
        dist.all_reduce(flags, dist.ReduceOp.MAX)
        for param, flag in zip(params, flags.tolist(), strict=True):
            if not flag:
                param.grad = None
        self._used.clear()

    def _note(self, number: int, _param: Tensor) -> None:
        self._used.add(number)
