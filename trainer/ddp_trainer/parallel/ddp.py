"""`ddp`: every rank holds everything; gradients are averaged as they come."""

import inspect
from contextlib import AbstractContextManager, nullcontext
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ddp_trainer.config import ParallelConfig
from ddp_trainer.parallel.objective import Objective
from ddp_trainer.parallel.strategy import Strategy


class Replicated(Strategy):
    """DistributedDataParallel, with settings that fit its version; rank 0's weights win.

    Buffers are not broadcast in the forward pass: BatchNorm statistics are averaged before they are
    used (see `numerics.norm`), which saves a collective per buffer and update.
    """

    def __init__(self, device: torch.device, config: ParallelConfig) -> None:
        super().__init__(device, config)
        self._views: list[Tensor] = []
        self._buckets: list[Tensor] = []
        self._places: list[int] = []

    def wrap(self, objective: Objective, *, compiled: bool) -> nn.Module:
        """Wraps the objective, whose model is compiled first: DDP splits its graph at buckets."""
        super().wrap(objective, compiled=compiled)
        known = inspect.signature(DistributedDataParallel).parameters
        settings: dict[str, Any] = {
            "device_ids": [self.device] if self.device.type == "cuda" else None,
            "bucket_cap_mb": self.config.bucket_mb,
            "find_unused_parameters": self.config.find_unused_parameters,
            "static_graph": self.config.static_graph,
            "gradient_as_bucket_view": True,
        }
        # Newer torch names the buffers' switch otherwise, and can copy gradients in one kernel.
        buffers = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
        settings[buffers] = False
        if "batched_grad_copy" in known:
            settings["batched_grad_copy"] = True
        return DistributedDataParallel(objective, **settings)

    def synchronised(self, wrapped: nn.Module, *, reduce: bool) -> AbstractContextManager[object]:
        """Reduces in the backward pass, bucket by bucket, or only adds to the buckets."""
        if reduce or not isinstance(wrapped, DistributedDataParallel):
            return nullcontext()
        return wrapped.no_sync()

    def memory(self, gradients: list[Tensor]) -> list[Tensor]:
        """DDP's buckets, which the gradients are views of, so that a pass takes one kernel each.

        They hold the gradient of the count beside these, and nothing else. Once DDP has settled
        where they lie, after its first pass, the views are the same tensors at each update and are
        not looked into again. Nothing else is kept here: it would keep memory from being freed, of
        the first buckets or of gradients that were not reduced, which are no views.
        """
        known = self._views
        if len(gradients) == len(known) and all(map(is_, gradients, known)):
            return self._buckets
        bases = [gradient._base for gradient in gradients]  # noqa: SLF001 - there is no other way
        if any(base is None for base in bases):
            return gradients
        buckets = list({id(base): base for base in bases if base is not None}.values())
        places = [bucket.data_ptr() for bucket in buckets]
        if places == self._places:
            self._views, self._buckets = gradients, buckets
        self._places = places
        return buckets
