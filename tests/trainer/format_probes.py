"""Functions that tests of the checkpoint format call on every rank."""

import contextlib
import gc
import io
import os
from pathlib import Path
from typing import Any

import torch

from ddp_trainer import train as train_
from ddp_trainer.config.settings import resolve
from ddp_trainer.observe.heartbeats import HeartbeatWriter
from ddp_trainer.ranks import process_group
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.run.opening import RunRequest, open_run
from ddp_trainer.run.saving import save
from ddp_trainer.run.state import gather
from ddp_trainer.stop import StopFlag

KINDS = ("model", "optimizer", "average", "compression", "buffers", "task")


def save_and_gather(argument: dict[str, Any]) -> None:
    """Train, save a checkpoint, and write the whole state of all ranks to a file beside it.

    Args:
        argument: `task`, its import path; `config` of the run; and `state`, the file to write.
    """
    ranks = Ranks.from_environment(os.environ)
    request = RunRequest(argument["task"], resolve(argument["config"]))
    with contextlib.redirect_stdout(io.StringIO()):
        run = open_run(request, ranks, StopFlag(), HeartbeatWriter(None, ranks, 0))
        train_.loop(run)
        save(run, required=True)
    taken = gather(run.learner, run.task)
    if taken is not None:
        tensors = {kind: dict(getattr(taken, kind).items()) for kind in KINDS}
        rest = {"optimizer": taken.optimizer_rest, "task": taken.task_rest}
        torch.save({"tensors": tensors, "rest": rest}, Path(argument["state"]))
    del run
    gc.collect()
    process_group.leave()
