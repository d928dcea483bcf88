"""Functions that tests call on every rank to measure the data that an update sends and holds."""

import gc
import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ddp_trainer.checkpoint import stream
from ddp_trainer.checkpoint.manager import CheckpointManager
from ddp_trainer.config.settings import resolve
from ddp_trainer.data.loader import by_update
from ddp_trainer.data.prefetch import on_device
from ddp_trainer.learner import Learner, footprint
from ddp_trainer.observe.heartbeats import HeartbeatWriter
from ddp_trainer.parallel.dtensor import local
from ddp_trainer.ranks import process_group
from ddp_trainer.ranks.collectives import by_rank
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.run import opening
from ddp_trainer.run.opening import RunRequest, open_run
from ddp_trainer.run.run import Run
from ddp_trainer.run.state import restore
from ddp_trainer.step import _accumulate, train_step
from ddp_trainer.stop import StopFlag

GPT = "ddp_trainer.tasks.gpt:build"
RESUME_CHUNK = 1 << 20
"""Bytes that rank 0 reads at once in `measure_resume`."""


class Recorder(TorchDispatchMode):
    """Records the name, the data type and the bytes of the largest tensor of each collective."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[str, str, int]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func.namespace == "c10d":
            tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
            largest = max(tensors, key=lambda tensor: tensor.nbytes)
            name = func.overloadpacket.__name__.strip("_")
            dtype = str(largest.dtype).removeprefix("torch.")
            self.calls.append((name, dtype, largest.nbytes))
        return func(*args, **(kwargs or {}))


def record_collectives(given: tuple[str, dict[str, Any]]) -> None:
    """Print the collectives of the third update of a task with a config."""
    path, config = given
    run, ranks = _opened(path, config)
    updates = by_update(on_device(run.train_loader, run.learner.device))
    for step in range(2):
        train_step(run.learner, next(updates), step, 1.0)
    with Recorder() as recorder:
        train_step(run.learner, next(updates), 2, 1.0)
    if ranks.is_first:
        print(json.dumps({"event": "probe", "calls": recorder.calls}), flush=True)
    del run, updates
    gc.collect()
    process_group.leave()


def measure_held(config: dict[str, Any]) -> None:
    """Print the bytes that each rank holds within an update, and the estimate of them.

    The bytes are those of the storages of weights, buffers, gradients after the first micro-batch,
    optimizer state without its counters, and moving average.
    """
    run, ranks = _opened(GPT, config)
    _print_held(run, ranks)
    del run
    gc.collect()
    process_group.leave()


def measure_resume(config: dict[str, Any]) -> None:
    """Resume a run, and print the growth of each rank's memory meanwhile.

    `growth` is the peak of the resident memory from the read of the checkpoint to the end of the
    restoration, above that at the beginning. Then print what `measure_held` prints.
    """
    stream.CHUNK = RESUME_CHUNK
    before = []
    receive = CheckpointManager.receive
    growth = []

    def watched_receive(self: CheckpointManager, device: torch.device) -> Any:
        # Reset the peak (proc(5)).
        Path("/proc/self/clear_refs").write_text("5")
        before.append(_status("VmRSS"))
        return receive(self, device)

    def watched_restore(*arguments: Any) -> None:
        restore(*arguments)
        growth.append(_status("VmHWM") - before[0])

    CheckpointManager.receive = watched_receive  # type: ignore[method-assign]
    setattr(opening, "restore", watched_restore)  # noqa: B010 - imported from another module
    run, ranks = _opened(GPT, config)
    grown = by_rank(growth[0], run.learner.device)
    if ranks.is_first:
        print(json.dumps({"event": "memory", "growth": grown}), flush=True)
    _print_held(run, ranks)
    del run
    gc.collect()
    process_group.leave()


def _status(name: str) -> int:
    """Return a value of `/proc/self/status` in bytes."""
    (line,) = re.findall(
        rf"^{name}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE
    )
    return 1024 * int(line)


def _print_held(run: Run, ranks: Ranks) -> None:
    learner = run.learner
    updates = by_update(on_device(run.train_loader, learner.device))
    train_step(learner, next(updates), 0, 1.0)
    _accumulate(learner, next(next(updates)), reduce=False)
    storages = {
        part.untyped_storage().data_ptr(): part.untyped_storage().nbytes()
        for part in map(local, _held(learner))
    }
    held = by_rank(sum(storages.values()), learner.device)
    estimate = footprint(learner).per_rank(run.config.parallel.strategy, ranks.world_size)
    if ranks.is_first:
        print(json.dumps({"event": "probe", "held": held, "estimate": estimate}), flush=True)


def _held(learner: Learner) -> Iterator[Tensor]:
    yield from (param.detach() for param in learner.objective.parameters())
    yield from learner.objective.buffers()
    params = [*learner.objective.parameters(), *_whole_params(learner.model)]
    yield from (param.grad for param in params if param.grad is not None)
    for state in learner.optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, Tensor) and value.dim())
    if learner.ema:
        yield from learner.ema.state().values()


def _whole_params(model: nn.Module) -> Iterable[nn.Parameter]:
    """Return fsdp2's gathered parameters, whose weights are freed while gradients remain."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            group = module._get_fsdp_state()._fsdp_param_group
            for param in group.fsdp_params if group else ():
                if getattr(param, "_unsharded_param", None) is not None:
                    yield param._unsharded_param


def _opened(path: str, config: dict[str, Any]) -> tuple[Run, Ranks]:
    ranks = Ranks.from_environment(os.environ)
    request = RunRequest(path, resolve(config))
    return open_run(request, ranks, StopFlag(), HeartbeatWriter(None, ranks, 0)), ranks
