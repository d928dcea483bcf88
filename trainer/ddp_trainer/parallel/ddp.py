"""The strategy `ddp`: every rank holds the whole model; DDP averages gradients in buckets."""

import inspect
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddp_trainer.parallel.objective import Objective
from ddp_trainer.parallel.strategy import Strategy


class Replicated(Strategy):
    """DistributedDataParallel with settings for the installed torch; rank 0's weights are used.

    DDP does not broadcast buffers in the forward pass. The trainer averages BatchNorm statistics
    before it uses them (`numerics.batch_norm`), which saves a collective per buffer and update.
    """

    def wrap(self, objective: Objective, *, compile_options: Mapping[str, Any] | None) -> nn.Module:
        """Compile the model, then wrap the objective: DDP splits the graph at its buckets."""
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
        """Return a context that reduces by bucket in the backward pass, or only accumulates."""
        if reduce or not isinstance(wrapped, DistributedDataParallel):
            return nullcontext()
        return wrapped.no_sync()
