"""Functions that tests run on every rank of a process group."""

import gc
import json
import os
from typing import Any

from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from ddp_trainer.data.loader import by_update
from ddp_trainer.data.prefetch import on_device
from ddp_trainer.environment import Ranks
from ddp_trainer.observe.beats import BeatWriter
from ddp_trainer.opening import Order, open_run
from ddp_trainer.parallel import process_group
from ddp_trainer.settings import resolve
from ddp_trainer.step import train_step
from ddp_trainer.stop import StopFlag


def steady_step(config: dict[str, Any]) -> None:
    """Prints what one update costs after the first few: reductions, host syncs, buckets."""
    ranks = Ranks.from_environment(os.environ)
    order = Order("sample_tasks:build", resolve(config))
    run = open_run(order, ranks, StopFlag(), BeatWriter(None, ranks, 0))
    updates = by_update(on_device(run.train_loader, run.learner.device))
    for step in range(4):
        train_step(run.learner, next(updates), step, 1.0)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        train_step(run.learner, next(updates), 4, 1.0)
    events = profiler.events()
    assert events is not None
    wrapped = run.learner.objective
    assert isinstance(wrapped, DistributedDataParallel)
    sizes = str(wrapped._get_ddp_logging_data()["rebuilt_bucket_sizes"])
    found = {
        "reductions": sum(event.name == "gloo:all_reduce" for event in events),
        "other": [e.name for e in events if e.name.startswith("gloo:") and "reduce" not in e.name],
        "syncs": sum(e.name == "aten::_local_scalar_dense" and not _fused(e) for e in events),
        "buckets": len(sizes.split(",")),
    }
    if ranks.is_first:
        print(json.dumps({"event": "probe", **found}), flush=True)
    del run, wrapped, updates
    gc.collect()
    process_group.leave()


def _fused(event: Any) -> bool:
    """Whether this happens inside the optimizer's kernel, which on the CPU reads its own count."""
    while event := event.cpu_parent:
        if event.name.startswith("aten::_fused"):
            return True
    return False
