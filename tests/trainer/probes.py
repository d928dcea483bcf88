"""Functions that tests call on every rank of a process group."""

import atexit
import errno
import gc
import importlib
import json
import os
import socket
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from ddp_trainer import report
from ddp_trainer.checkpoint import format as format_
from ddp_trainer.checkpoint import volume
from ddp_trainer.checkpoint.manager import CheckpointManager
from ddp_trainer.checkpoint.snapshot import Checkpoint
from ddp_trainer.checkpoint.store.directory import PendingFolder
from ddp_trainer.commands import main as main_
from ddp_trainer.commands.main import main
from ddp_trainer.config.settings import resolve
from ddp_trainer.data.loader import by_update
from ddp_trainer.data.prefetch import on_device
from ddp_trainer.observe import starvation
from ddp_trainer.observe.heartbeats import HeartbeatWriter
from ddp_trainer.ranks import process_group
from ddp_trainer.ranks.collectives import sum_over_ranks
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.report import stop_vote
from ddp_trainer.run.opening import RunRequest, open_run
from ddp_trainer.step import train_step
from ddp_trainer.stop import StopFlag
from ddp_trainer.tools.verify.buffers import compare_buffers
from ddp_wire.messages import CheckpointInfo


def profile_steady_step(config: dict[str, Any]) -> None:
    """Print the reductions, host syncs and buckets of one update after the first few."""
    ranks = Ranks.from_environment(os.environ)
    path = config.pop("path", "sample_tasks:build")
    request = RunRequest(path, resolve(config))
    run = open_run(request, ranks, StopFlag(), HeartbeatWriter(None, ranks, 0))
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
    counts = {
        "reductions": sum(event.name == "gloo:all_reduce" for event in events),
        "other": [e.name for e in events if e.name.startswith("gloo:") and "reduce" not in e.name],
        "syncs": sum(e.name == "aten::_local_scalar_dense" and not _is_fused(e) for e in events),
        "buckets": len(sizes.split(",")),
        "buffers": _difference(list(run.learner.model.buffers())),
    }
    if ranks.is_first:
        print(json.dumps({"event": "probe", **counts}), flush=True)
    del run, wrapped, updates
    gc.collect()
    process_group.leave()


def report_buffers(config: dict[str, Any]) -> None:
    """Print what `verify` reports about the buffers of two ranks."""
    ranks = Ranks.from_environment(os.environ)
    found = compare_buffers("buffer_tasks:build", resolve(config), ranks)
    if ranks.is_first:
        print(json.dumps({"event": "probe", "found": found and asdict(found)}), flush=True)
    gc.collect()
    process_group.leave()


def _difference(tensors: list[Any]) -> float:
    """Return the largest difference between this rank's numbers and the mean of all ranks."""
    flat = torch.cat([torch.zeros(1), *(tensor.flatten().float() for tensor in tensors)])
    mean = sum_over_ranks(flat.clone()) / torch.distributed.get_world_size()
    return float((mean - flat).abs().max())


def train_with_odd_rank(difference: str) -> int:
    """Train while rank 1 differs from the other ranks in one respect."""
    arguments = ["train", "--task=sample_tasks:build", "--max_steps=3", "--global_batch=12"]
    odd = os.environ["RANK"] == "1"
    match difference:
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
                setattr(torch, "__version__", "1.0.0")  # noqa: B010 - torch gives it its own type
            if difference == "mixed":
                arguments.append("--parallel.allow_mixed=true")
        case _:
            pass
    return main(arguments)


def train_without_network(arguments: list[str]) -> int:
    """Train while Python can neither resolve nor connect to any other host."""
    connect, resolve = socket.socket.connect, socket.getaddrinfo

    def is_local(place: Any) -> bool:
        return not isinstance(place, tuple) or str(place[0]) in {"127.0.0.1", "localhost", "::1"}

    def guarded_connect(self: socket.socket, place: Any) -> None:
        assert is_local(place), f"connection to {place}"
        connect(self, place)

    def guarded_resolve(host: Any, *rest: Any, **named: Any) -> Any:
        assert is_local((host,)), f"look-up of {host}"
        return resolve(host, *rest, **named)

    socket.socket.connect = guarded_connect  # type: ignore[method-assign,assignment]
    socket.getaddrinfo = guarded_resolve
    return main(["train", "--task=sample_tasks:build", "--max_steps=3", *arguments])


def _is_fused(event: Any) -> bool:
    """Return whether the event is inside the optimizer kernel, which reads its own count."""
    while event := event.cpu_parent:
        if event.name.startswith("aten::_fused"):
            return True
    return False


def measure_local_sgd(config: dict[str, Any]) -> None:
    """Print the largest difference between the weights of two ranks after each of eight updates."""
    ranks = Ranks.from_environment(os.environ)
    run = open_run(
        RunRequest("sample_tasks:build", resolve(config)),
        ranks,
        StopFlag(),
        HeartbeatWriter(None, ranks, 0),
    )
    updates = by_update(on_device(run.train_loader, run.learner.device))
    for step in range(8):
        train_step(run.learner, next(updates), step, 1.0)
        flat = torch.cat([param.detach().flatten() for param in run.learner.params])
        moments = run.learner.optimizer.state.values()
        flat = torch.cat([flat, *(state["momentum_buffer"].flatten() for state in moments)])
        difference = float((sum_over_ranks(flat.clone()) / 2 - flat).abs().max())
        if ranks.is_first:
            print(json.dumps({"event": "probe", "difference": difference}), flush=True)
    del run, updates
    gc.collect()
    process_group.leave()


def train_in_zones(zones: list[str]) -> int:
    """Train with each rank on a separate Kubernetes node, in the given zone."""
    rank = int(os.environ["RANK"])
    os.environ |= {"DDP_NODE_NAME": f"n{rank}", "DDP_ZONE": zones[rank]}
    arguments = ["train", "--task=sample_tasks:build", "--max_steps=2", "--global_batch=8"]
    return main(arguments)


def train_with_slow_data(rank: int) -> int:
    """Train while one rank reads its samples slowly. Shorten the window of the warning to 1 s."""
    starvation.WINDOW_SECONDS = 1.0
    points = importlib.import_module("sample_tasks").Points
    slow = 0.02 if os.environ["RANK"] == str(rank) else 0.0
    read = points.__getitem__

    def read_slowly(self: Any, index: int) -> Any:
        time.sleep(slow)
        return read(self, index)

    points.__getitem__ = read_slowly
    arguments = ["train", "--task=sample_tasks:build", "--max_steps=30", "--global_batch=8"]
    return main([*arguments, "--log.every_steps=1", "--task.eval_samples=0"])


def train_on_faulty_volume(given: list[str]) -> int:
    """Train on a volume that is slow (`slow`), or fails (`EIO`, `ENOSPC` …), without waits.

    Args:
        given: The fault, and the arguments of the command.
    """
    fault, *arguments = given
    crc32_of, write = format_.crc32_of, PendingFolder.put

    def fail(path: Path) -> None:
        if fault != "slow":
            code = getattr(errno, fault)
            raise OSError(code, os.strerror(code), str(path))
        time.sleep(0.6)  # Two files of a checkpoint exceed a timeout of 1 s.

    def faulty_crc32_of(path: Path) -> str:
        fail(path)
        return crc32_of(path)

    def put(self: PendingFolder, file: str, parts: Any) -> Any:
        fail(self.folder / file)
        return write(self, file, parts)

    format_.crc32_of = faulty_crc32_of
    PendingFolder.put = put  # type: ignore[method-assign]
    volume.RETRY_WAITS = (0.0,)  # type: ignore[assignment]
    main_.RANK_0_MESSAGE_SECONDS = 0.0
    return main(["train", "--task=sample_tasks:build", "--global_batch=10", *arguments])


def train_with_held_commit(given: list[str]) -> int:
    """Train while rank 0 delays the commit of a checkpoint until a file `go` exists.

    Args:
        given: The folder of that file, and the arguments of the command.
    """
    folder, *arguments = given
    commit = CheckpointManager.save

    def save(self: CheckpointManager, checkpoint: Checkpoint) -> CheckpointInfo | None:
        while not (Path(folder) / "go").exists():
            time.sleep(0.01)
        return commit(self, checkpoint)

    CheckpointManager.save = save  # type: ignore[method-assign]
    return main(["train", "--task=sample_tasks:build", "--global_batch=10", *arguments])


def report_until_stopped(_: None) -> int:
    """Report the steps of a plain loop until the ranks stop together. Print the last step."""
    stop_vote._AGREE_SECONDS = 0.1
    torch.distributed.init_process_group("gloo")
    step = 0
    while not report.should_stop():
        torch.distributed.all_reduce(torch.ones(1))
        step += 1
        report.progress(step, loss=1 / step)
    print(step, flush=True)
    torch.distributed.destroy_process_group()
    atexit._run_exitfuncs()  # As an interpreter does. A process of multiprocessing does not.
    return report.STOPPED


def measure_updates(config: dict[str, Any]) -> None:
    """Print the size of each update: the largest change of a weight."""
    ranks = Ranks.from_environment(os.environ)
    request = RunRequest("sample_tasks:build", resolve(config))
    run = open_run(request, ranks, StopFlag(), HeartbeatWriter(None, ranks, 0))
    sizes = []
    for step, update in enumerate(by_update(on_device(run.train_loader, run.learner.device))):
        before = [param.detach().clone() for param in run.learner.params]
        train_step(run.learner, update, step, 1.0)
        pairs = zip(before, run.learner.params, strict=True)
        sizes.append(max(float((new.detach() - old).abs().max()) for old, new in pairs))
    if ranks.is_first:
        print(json.dumps({"event": "probe", "sizes": sizes}), flush=True)
    del run
    gc.collect()
    process_group.leave()
