"""The strategy `fsdp2`: weights, gradients and optimizer state are split over ranks.

torch's `fully_shard` gathers the weights of a block when the block computes and frees them
afterwards (Zhao et al. 2023, arXiv:2304.11277). `count_param` is not split, so an update needs two
more reductions than with ddp, each of one number.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.modules.batchnorm import _NormBase

from ddp_trainer.parallel.blocks import repeated_blocks
from ddp_trainer.parallel.deferred import create_weights, free_at_once, is_deferred
from ddp_trainer.parallel.dtensor import is_split, laid_out_like, local, whole
from ddp_trainer.parallel.layout import make_contiguous
from ddp_trainer.parallel.objective import Objective
from ddp_trainer.parallel.strategy import Strategy
from ddp_trainer.parallel.unused import UnusedWeights


class FullySharded(Strategy):
    """Each repeated block is split separately, and the rest of the model as one."""

    _unused: UnusedWeights | None = None

    def wrap(self, objective: Objective, *, compile_options: Mapping[str, Any] | None) -> nn.Module:
        """Move the model to the device and split it, one block at a time.

        A block that only some ranks use cannot be gathered separately. So with
        `find_unused_parameters` the whole model is one block. torch can split only contiguous
        weights.
        """
        if self.device.type == "cpu" and is_deferred(objective.model):
            free_at_once()
        make_contiguous(objective.model)
        mesh = init_device_mesh(self.device.type, (dist.get_world_size(),))
        blocks = repeated_blocks(objective.model)
        if self.config.find_unused_parameters:
            blocks = []
            unused = self._unused = UnusedWeights(objective.model)
            objective.register_forward_hook(lambda *_: unused.before_backward())
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
        """Move a module to the device and broadcast rank 0's values, except for split tensors.

        Weights that the task has deferred are created here, a block at a time.
        """
        create_weights(part, self.device)
        part.to(self.device)
        for tensor in (*part.parameters(), *part.buffers()):
            if not is_split(tensor):
                dist.broadcast(tensor.detach(), src=0)

    def _policy(self, part: nn.Module, *, cast_inputs: bool) -> MixedPrecisionPolicy:
        """Return the number formats of a part. With bf16, it gathers bf16 and reduces fp32.

        A part with BatchNorm gathers fp32 weights, because torch accepts fp32 statistics with bf16
        inputs only if the weights are fp32 too.

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

        A pass that only accumulates also reduces its gradients, because whole gradients would need
        the memory that fsdp2 saves. With `full_gradients` the pass accumulates whole gradients.
        """
        model = wrapped.model
        if self.config.full_gradients and isinstance(model, FSDPModule):
            model.set_requires_gradient_sync(reduce)
        return nullcontext()

    def mean(self, value: Tensor) -> Tensor:
        """Return a gradient's average over ranks."""
        dist.all_reduce(value)
        return value / dist.get_world_size()

    def local_parts(self, gradients: list[Tensor]) -> list[Tensor]:
        """Return this rank's parts of the gradients, without a copy."""
        return [local(gradient) for gradient in gradients]

    def drop_unused(self, params: list[nn.Parameter]) -> None:
        """Drop the gradients of weights that no pass on any rank has used."""
        if self._unused is not None:
            self._unused.drop(params)

    def any(self, flag: Tensor) -> None:
        """Reduce the flag over ranks, because each rank sees only its part of the gradients."""
        dist.all_reduce(flag, dist.ReduceOp.MAX)

    def free_gathered(self, model: nn.Module) -> None:
        """Free the root module's weights, which torch keeps gathered for a backward pass."""
        for module in _split_modules(model):
            module.reshard()

    @contextmanager
    def whole_weights(self, model: nn.Module) -> Iterator[Callable[[], nn.Module]]:
        """Return the context of a hook, which gathers the weights when it asks for the model."""
        parts: list[nn.Parameter] = []

        def gathered() -> nn.Module:
            if not parts:
                parts.extend(model.parameters())
                for module in _split_modules(model):
                    # A forward pass of the hook must not free them.
                    module.set_reshard_after_forward(False, recurse=False)
                    module.unshard()
                _use_exact(parts, model)
            return model

        try:
            yield gathered
            if parts:
                _keep_changes(parts, model)
        finally:
            for number, module in enumerate(_split_modules(model)):
                # torch keeps the root, which is the first, gathered for the backward pass.
                module.set_reshard_after_forward(number > 0, recurse=False)
                module.reshard()


def _split_modules(model: nn.Module) -> list[FSDPModule]:
    """Return the parts of the model that gather their weights separately, the root first."""
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def _use_exact(parts: list[nn.Parameter], model: nn.Module) -> None:
    """Replace gathered weights that were rounded to bf16 by exact weights."""
    pairs = list(zip(parts, model.parameters(), strict=True))
    exact = {
        id(gathered): nn.Parameter(whole(part.detach()), requires_grad=part.requires_grad)
        for part, gathered in pairs
        if gathered.dtype != part.dtype
    }
    for module in model.modules():
        for name, gathered in list(module.named_parameters(recurse=False)):
            if id(gathered) in exact:
                setattr(module, name, exact[id(gathered)])


@torch.no_grad()
def _keep_changes(parts: list[nn.Parameter], model: nn.Module) -> None:
    """Copy changes of the model's gathered weights to this rank's parts of the weights."""
    for part, gathered in zip(parts, model.parameters(), strict=True):
        if gathered is not part:
            part.copy_(laid_out_like(gathered, part))
