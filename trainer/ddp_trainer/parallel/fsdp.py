"""The strategy `fsdp2`: weights, gradients and optimizer state are split over ranks.

torch's `fully_shard` gathers the weights of a block when the block computes and frees them
afterwards (Zhao et al. 2023, arXiv:2304.11277). `count_param` is not split, so an update needs two
reductions of one number more than with ddp.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.modules.batchnorm import _NormBase

from ddp_trainer.parallel.blocks import repeated_blocks
from ddp_trainer.parallel.dtensor import is_split, local
from ddp_trainer.parallel.objective import Objective
from ddp_trainer.parallel.strategy import Strategy


class FullySharded(Strategy):
    """Each repeated block is split separately, and the rest of the model as one."""

    def wrap(self, objective: Objective, *, compile_options: Mapping[str, Any] | None) -> nn.Module:
        """Move the model to the device and split it, one block at a time."""
        mesh = init_device_mesh(self.device.type, (dist.get_world_size(),))
        blocks = repeated_blocks(objective.model)
        for block in blocks:
            self._place(block)
            if compile_options is not None:
                block.compile(**compile_options)
            fully_shard(block, mesh=mesh, mp_policy=self._policy(block, cast_inputs=True))
        self._place(objective)
        if compile_options is not None and not blocks:
            objective.model.compile(**compile_options)
        # Inputs of the model may be numbers that bf16 rounds too much, such as times.
        rest = self._policy(objective.model, cast_inputs=False)
        fully_shard(objective.model, mesh=mesh, mp_policy=rest)
        return objective

    def _place(self, part: nn.Module) -> None:
        """Move a module to the device and broadcast rank 0's values, except for split tensors."""
        part.to(self.device)
        for tensor in (*part.parameters(), *part.buffers()):
            if not is_split(tensor):
                dist.broadcast(tensor.detach(), src=0)

    def _policy(self, part: nn.Module, *, cast_inputs: bool) -> MixedPrecisionPolicy:
        """Return the number formats of a part: with bf16, gather bf16 weights and reduce in fp32.

        A part with normalisation over the batch gathers fp32, because torch normalises bf16 with
        fp32 weights or statistics only if both are fp32.

        Args:
            part: A block, or the model.
            cast_inputs: Whether the part receives its floating-point inputs in bf16.
        """
        normalises = any(isinstance(module, _NormBase) for module in part.modules())
        if self.precision != "bf16" or normalises:
            return MixedPrecisionPolicy()
        return MixedPrecisionPolicy(
            param_dtype=torch.bfloat16,
            reduce_dtype=torch.float32,
            cast_forward_inputs=cast_inputs,
        )

    def gradient_sync(self, wrapped: nn.Module, *, reduce: bool) -> AbstractContextManager[object]:
        """Reduce the gradients in the backward pass.

        A pass that only accumulates reduces them too, because whole gradients would need the memory
        that fsdp2 saves. With `full_gradients` it accumulates whole gradients.
        """
        model = wrapped.model
        if self.config.full_gradients and isinstance(model, FSDPModule):
            model.set_requires_gradient_sync(reduce)
        return nullcontext()

    def mean(self, value: Tensor) -> Tensor:
        """Return the average over ranks."""
        dist.all_reduce(value)
        return value / dist.get_world_size()

    def local_parts(self, gradients: list[Tensor]) -> list[Tensor]:
        """Return this rank's parts of the gradients, without a copy."""
        return [local(gradient) for gradient in gradients]

    def any(self, flag: Tensor) -> None:
        """Reduce the flag, because each rank sees only its part of the gradients."""
        dist.all_reduce(flag, dist.ReduceOp.MAX)

    def free_gathered(self, model: nn.Module) -> None:
        """Free the root's weights, which torch keeps gathered for a backward pass."""
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
