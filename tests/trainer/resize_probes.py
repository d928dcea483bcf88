"""Functions that tests of resizes call on every rank."""

import contextlib
import gc
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ddp_trainer import train as train_
from ddp_trainer.commands.main import main
from ddp_trainer.config.settings import resolve
from ddp_trainer.data.sampler import MicroBatch
from ddp_trainer.learner import Learner
from ddp_trainer.observe.heartbeats import HeartbeatWriter
from ddp_trainer.ranks import process_group
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.run.opening import RunRequest, open_run
from ddp_trainer.run.saving import save
from ddp_trainer.step import train_step
from ddp_trainer.stop import StopFlag

NORM = "norm.running_mean"


def train_recorded(argument: dict[str, Any]) -> int:
    """Run `train`, and write what each update of this rank consumed. End as requested.

    Args:
        argument: `arguments` of the command; `records`, the stem of the files; and `end`, None or
            the rank that gets a signal within an update, the index of that update and the signal.
    """
    rank, end = int(os.environ["RANK"]), argument["end"]

    def recorded(
        learner: Learner, micro_batches: Iterator[MicroBatch], step: int, lr_factor: float
    ) -> int:
        samples: list[int] = []

        def noted() -> Iterator[MicroBatch]:
            for micro_batch in micro_batches:
                if micro_batch.weight:
                    samples.extend(micro_batch.batch[3].tolist())
                if end is not None and end[:2] == [rank, step]:
                    os.kill(os.getpid(), end[2])
                yield micro_batch

        consumed = train_step(learner, noted(), step, lr_factor)
        record = {"step": step, "samples": samples, "lr": learner.optimizer.param_groups[0]["lr"]}
        with Path(f"{argument['records']}-{rank}.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")
        return consumed

    setattr(train_, "train_step", recorded)  # noqa: B010 - the module does not export the name
    return main(["train", *argument["arguments"]])


def report_residues(config: dict[str, Any]) -> None:
    """Print this rank's state of powersgd after a resume: residues by bucket, and matrices."""
    ranks = Ranks.from_environment(os.environ)
    request = RunRequest("sample_tasks:build", resolve(config))
    with contextlib.redirect_stdout(io.StringIO()):
        run = open_run(request, ranks, StopFlag(), HeartbeatWriter(None, ranks, 0))
    assert run.learner.compression
    state = run.learner.compression.state(ranks.rank)
    own = {name: tensor.tolist() for name, tensor in state.items()}
    residues = {n.rpartition("/")[2]: v for n, v in own.items() if n.startswith("residue/")}
    shared = {name: v for name, v in own.items() if not name.startswith("residue/")}
    print(json.dumps({"event": "probe", "residues": residues, "shared": shared}), flush=True)
    del run
    gc.collect()
    process_group.leave()


def report_norms(config: dict[str, Any]) -> None:
    """Make an update, save, and print BatchNorm's running mean before, after and when saved."""
    ranks = Ranks.from_environment(os.environ)
    request = RunRequest("sample_tasks:build", resolve(config))
    with contextlib.redirect_stdout(io.StringIO()):
        run = open_run(request, ranks, StopFlag(), HeartbeatWriter(None, ranks, 0))
        means = [_running_mean(run.learner.model)]
        train_.loop(run)
        means.append(_running_mean(run.learner.model))
        save(run, required=True)
        means.append(_running_mean(run.learner.model))
    print(json.dumps({"event": "probe", "means": means}), flush=True)
    del run
    gc.collect()
    process_group.leave()


def _running_mean(model: torch.nn.Module) -> list[float]:
    found: list[float] = model.get_buffer(NORM).tolist()
    return found


_VARIABLES: dict[str, Any] = {}
"""Variables of the script. They stay, because DDP may wait for ever when it is freed here."""


def run_script(source: str) -> None:
    """Run a script as torchrun would on each rank."""
    exec(compile(source, "script", "exec"), _VARIABLES)  # noqa: S102 - it is an example of a page
