"""Functions that tests run on every rank of a process group."""

import gc
import importlib
import json
import os
import socket
import time
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from ddp_trainer.commands.main import main
from ddp_trainer.config.settings import resolve
from ddp_trainer.data.loader import by_update
from ddp_trainer.data.prefetch import on_device
from ddp_trainer.observe import starvation
from ddp_trainer.observe.beats import BeatWriter
from ddp_trainer.ranks import process_group
from ddp_trainer.ranks.collectives import sum_over_ranks
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.run.opening import Order, open_run
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


def without_network(arguments: list[str]) -> int:
    """Trains where Python can open no connection beyond this machine, and resolve no other name."""
    connect, resolve = socket.socket.connect, socket.getaddrinfo

    def near(place: Any) -> bool:
        return not isinstance(place, tuple) or str(place[0]) in {"127.0.0.1", "localhost", "::1"}

    def guarded_connect(self: socket.socket, place: Any) -> None:
        assert near(place), f"a connection to {place}"
        connect(self, place)

    def guarded_resolve(host: Any, *rest: Any, **named: Any) -> Any:
        assert near((host,)), f"a look-up of {host}"
        return resolve(host, *rest, **named)

    socket.socket.connect = guarded_connect  # type: ignore[method-assign,assignment]
    socket.getaddrinfo = guarded_resolve
    return main(["train", "--task=sample_tasks:build", "--max_steps=3", *arguments])


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


def placed(zones: list[str]) -> int:
    """Trains with each rank on a node of its own, in the zone of the list."""
    rank = int(os.environ["RANK"])
    os.environ |= {"DDP_NODE_NAME": f"n{rank}", "DDP_ZONE": zones[rank]}
    arguments = ["train", "--task=sample_tasks:build", "--max_steps=2", "--global_batch=8"]
    return main(arguments)


def slow_data(rank: int) -> int:
    """Trains while one rank reads its samples slowly; a second is long enough to be told of."""
    starvation.WINDOW_SECONDS = 1.0
    points = importlib.import_module("sample_tasks").Points
    slow = 0.02 if os.environ["RANK"] == str(rank) else 0.0
    read = points.__getitem__

    def slowly(self: Any, index: int) -> Any:
        time.sleep(slow)
        return read(self, index)

    points.__getitem__ = slowly
    arguments = ["train", "--task=sample_tasks:build", "--max_steps=30", "--global_batch=8"]
    return main([*arguments, "--log.every_steps=1", "--task.eval_samples=0"])
