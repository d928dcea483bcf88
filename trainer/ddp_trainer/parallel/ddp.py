"""The strategy `ddp`: every rank holds the whole model; DDP averages gradients in buckets."""

import inspect
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddp_trainer.errors import InputError
from ddp_trainer.names import plain_name
from ddp_trainer.parallel.layout import make_contiguous
from ddp_trainer.parallel.objective import Objective
from ddp_trainer.parallel.strategy import Strategy

_UNUSED = re.compile(r"did not receive grad for rank \d+: ([\d ]*\d)")
"""Part of torch's error message about weights without a gradient, for which its reducer waits."""


class Replicated(Strategy):
    """Strategy with DistributedDataParallel, which starts from rank 0's weights.

    DDP does not broadcast buffers in the forward pass. The trainer averages BatchNorm statistics
    before it uses them (`numerics.batch_norm`), which saves a collective per buffer and update.
    """

    def wrap(self, objective: Objective, *, compile_options: Mapping[str, Any] | None) -> nn.Module:
        """Compile the model, then wrap the objective: DDP splits the graph at its buckets.

        PowerSGD views each gradient as a matrix, and keeps residues in the order of the memory.
        """
        if self.config.compression.name == "powersgd":
            make_contiguous(objective.model)
        super().wrap(objective, compile_options=compile_options)
        known = inspect.signature(DistributedDataParallel).parameters
        settings: dict[str, Any] = {
            "device_ids": [self.device] if self.device.type == "cuda" else None,
            "bucket_cap_mb": self.config.bucket_mb,
            "find_unused_parameters": self.config.find_unused_parameters,
            "static_graph": self.config.static_graph,
            "gradient_as_bucket_view": True,
        }
        # Newer torch renamed the switch for buffers, and can copy gradients in one kernel. A CPU
        # has no such kernel, and single copies also divide by the number of ranks.
        buffers = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
        settings[buffers] = False
        if "batched_grad_copy" in known:
            settings["batched_grad_copy"] = self.device.type == "cuda"
        return DistributedDataParallel(objective, **settings)

    def gradient_sync(self, wrapped: nn.Module, *, reduce: bool) -> AbstractContextManager[object]:
        """Return a context in which the backward pass reduces each bucket, or only accumulates."""
        if reduce or not isinstance(wrapped, DistributedDataParallel):
            return nullcontext()
        return wrapped.no_sync()

    def check_reduced(self, wrapped: nn.Module) -> None:
        """Refuse unused weights. torch fails only in the next pass, after a wrong update."""
        if not isinstance(wrapped, DistributedDataParallel):
            return
        try:
            wrapped._check_reducer_finalized()  # noqa: SLF001 - it has no public name
        except RuntimeError as error:
            found = _UNUSED.search(str(error))
            if found is None:
                raise
            trained = [name for name, param in wrapped.named_parameters() if param.requires_grad]
            unused = [trained[int(index)] for index in found[1].split()]
            name = plain_name(unused[0]).removeprefix("module.model.")
            raise InputError(
                f"task: the loss leaves {len(unused)} of {len(trained)} parameters without a"
                f' gradient, first "{name}": set parallel.find_unused_parameters=true, or call'
                " requires_grad_(False) in build",
                rank_specific=True,
            ) from error
