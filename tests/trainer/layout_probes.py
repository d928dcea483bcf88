"""Functions that tests of memory layouts call on every rank. They compare resumed runs."""

import contextlib
import gc
import io
import json
import os
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from ddp_trainer.checkpoint.snapshot import take
from ddp_trainer.config.settings import merge, resolve
from ddp_trainer.observe.heartbeats import HeartbeatWriter
from ddp_trainer.parallel.dtensor import local
from ddp_trainer.ranks import process_group
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.run.opening import RunRequest, open_run
from ddp_trainer.run.run import Run
from ddp_trainer.run.saving import roll_back, save
from ddp_trainer.run.state import gather
from ddp_trainer.stop import StopFlag
from ddp_trainer.train import loop

STEPS = 6


def strategies(world: int) -> list[str]:
    """Return the strategies that behave differently with this number of ranks."""
    return ["ddp", "zero1", "fsdp2"][: 1 if world == 1 else None]


def compare_resumed(given: tuple[str, list[dict[str, Any]]]) -> None:
    """Print the names of the tensors that a resume changes, by case.

    Args:
        given: A folder, and the settings of each case.
    """
    folder, cases = given
    ranks = Ranks.from_environment(os.environ)
    for number, settings in enumerate(cases):
        home = Path(folder) / f"{number}-{ranks.world_size}"
        whole = train(ranks, home / "whole", settings, STEPS)
        train(ranks, home / "broken", settings, STEPS // 2)
        resumed = train(ranks, home / "broken", settings, STEPS)
        different = [name for name, value in whole.items() if not value.equal(resumed[name])]
        if ranks.is_first:
            found = {"different": different, "compared": len(whole)}
            print(json.dumps({"event": "probe", **found}), flush=True)
    gc.collect()
    process_group.leave()


def train(ranks: Ranks, folder: Path, settings: dict[str, Any], steps: int) -> dict[str, Tensor]:
    """Train up to a step, and return weights, moments and average on rank 0."""
    run = _opened(ranks, folder, settings, steps)
    with contextlib.redirect_stdout(io.StringIO()):
        loop(run)
        save(run, required=True)
    return _gathered(run)


def write_checkpoints(given: tuple[str, dict[str, Any]]) -> None:
    """Train with each strategy, each into a folder of its own.

    Args:
        given: A folder, and the settings.
    """
    folder, settings = given
    ranks = Ranks.from_environment(os.environ)
    for strategy in strategies(ranks.world_size):
        own = merge(settings, {"parallel": {"strategy": strategy}})
        train(ranks, Path(folder) / f"{strategy}-{ranks.world_size}", own, STEPS // 2)
    gc.collect()
    process_group.leave()


def resume_checkpoints(given: tuple[list[str], dict[str, Any]]) -> None:
    """Resume each checkpoint with each strategy, train, and roll back.

    Print the names of the tensors that differ from the saved ones, and the sum of all numbers after
    the training. Fail if a tensor's memory layout differs from that of a run that has not resumed.

    Args:
        given: Folders with checkpoints, and the settings. The function changes only copies of the
            folders.
    """
    folders, settings = given
    ranks = Ranks.from_environment(os.environ)
    for strategy in strategies(ranks.world_size):
        own = merge(settings, {"parallel": {"strategy": strategy}})
        fresh = _opened(ranks, None, own, 1)
        with contextlib.redirect_stdout(io.StringIO()):
            loop(fresh)
        native = _strides(fresh)
        for folder in map(Path, folders):
            run = _opened(ranks, folder / strategy, own, STEPS)
            resumed = _gathered(run)
            assert _strides(run) == native, (strategy, folder.name)
            with contextlib.redirect_stdout(io.StringIO()):
                loop(run)
            trained = _gathered(run)
            roll_back(run)
            back = _gathered(run)
            assert _strides(run) == native, (strategy, folder.name)
            if ranks.is_first:
                saved = _saved(folder / strategy)
                found = {
                    "compared": len(saved),
                    "resumed": [name for name, t in saved.items() if not t.equal(resumed[name])],
                    "rolled_back": [name for name, t in saved.items() if not t.equal(back[name])],
                    "trained": sum(float(tensor.abs().sum()) for tensor in trained.values()),
                }
                print(json.dumps({"event": "probe", **found}), flush=True)
    gc.collect()
    process_group.leave()


def _opened(ranks: Ranks, folder: Path | None, settings: dict[str, Any], steps: int) -> Run:
    """Open a run that saves to a folder, or that saves nothing."""
    over: dict[str, Any] = {"max_steps": steps, "epochs": None}
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        # A save averages the ranks of local SGD, so the whole run saves at the same step.
        over["checkpoint"] = {"directory": str(folder), "every_steps": STEPS // 2}
    request = RunRequest("layout_tasks:build", resolve(merge(settings, over)))
    with contextlib.redirect_stdout(io.StringIO()):
        return open_run(request, ranks, StopFlag(), HeartbeatWriter(None, ranks, 0))


def _gathered(run: Run) -> dict[str, Tensor]:
    """Return weights, moments and average on rank 0."""
    taken = gather(run.learner, run.task)
    if taken is None:
        return {}
    kinds = {"model": taken.model, "optimizer": taken.optimizer, "ema": taken.average}
    return {f"{kind}/{name}": t for kind, named in kinds.items() for name, t in named.items()}


def _saved(folder: Path) -> dict[str, Tensor]:
    """Return weights, moments and average of a checkpoint, read without the trainer."""
    newest = max(folder.glob("step-*"))
    return {
        f"{kind}/{name}": tensor
        for kind in ("model", "optimizer", "ema")
        for name, tensor in load_file(newest / f"{kind}.safetensors").items()
    }


def _strides(run: Run) -> dict[str, tuple[int, ...]]:
    """Return the strides of this rank's part of each weight, moment and average."""
    own = take(run.learner.model, run.learner.optimizer)
    average = run.learner.ema.state() if run.learner.ema else {}
    kinds = {"model": own.model, "optimizer": own.optimizer, "ema": average}
    return {
        f"{kind}/{name}": local(tensor).stride()
        for kind, named in kinds.items()
        for name, tensor in named.items()
    }
