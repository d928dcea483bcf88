"""Functions that tests run on every rank of a process group."""

import gc
import json
import os
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from ddp_trainer.commands.main import main
from ddp_trainer.data.loader import by_update
from ddp_trainer.data.prefetch import on_device
from ddp_trainer.environment import Ranks
from ddp_trainer.observe.beats import BeatWriter
from ddp_trainer.opening import Order, open_run
from ddp_trainer.parallel import process_group
from ddp_trainer.parallel.collectives import sum_over_ranks
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
    logged = wrapped._get_ddp_logging_data()
    sizes = str(logged.get("rebuilt_bucket_sizes", logged["bucket_sizes"]))
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


def odd_rank(what: str) -> int:
    """Trains with rank 1 unlike the others in one respect."""
    arguments = ["train", "--task=sample_tasks:build", "--max_steps=3", "--global_batch=12"]
    odd = os.environ["RANK"] == "1"
    match what:
        case "config" if odd:
            arguments.append("--optimizer.lr=0.5")
        case "data":
            arguments[1] = "--task=sample_tasks:build_by_rank"
        case "absent":
            arguments[1] = "--task=sample_tasks:build_absent"
        case "broken":
            arguments[1] = "--task=sample_tasks:build_broken"
        case "torch" | "mixed":
            if odd:
                setattr(torch, "__version__", "1.0.0")  # noqa: B010 - its type is torch's own
            if what == "mixed":
                arguments.append("--parallel.allow_mixed=true")
        case _:
            pass
    return main(arguments)


def _fused(event: Any) -> bool:
    """Whether this happens inside the optimizer's kernel, which on the CPU reads its own count."""
    while event := event.cpu_parent:
        if event.name.startswith("aten::_fused"):
            return True
    return False


def local_sgd(config: dict[str, Any]) -> None:
    """Prints after each of eight updates how far the weights of two ranks are apart."""
    ranks = Ranks.from_environment(os.environ)
    run = open_run(
        Order("sample_tasks:build", resolve(config)), ranks, StopFlag(), BeatWriter(None, ranks, 0)
    )
    updates = by_update(on_device(run.train_loader, run.learner.device))
    for step in range(8):
        train_step(run.learner, next(updates), step, 1.0)
        flat = torch.cat([param.detach().flatten() for param in run.learner.params])
        moments = run.learner.optimizer.state.values()
        flat = torch.cat([flat, *(state["momentum_buffer"].flatten() for state in moments)])
        apart = float((sum_over_ranks(flat.clone()) / 2 - flat).abs().max())
        if ranks.is_first:
            print(json.dumps({"event": "probe", "apart": apart}), flush=True)
    del run, updates
    gc.collect()
    process_group.leave()
