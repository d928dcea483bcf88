"""Functions that tests of the checkpoint format call on every rank."""

import contextlib
import errno
import gc
import io
import os
import resource
import sys
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel

from ddp_trainer import train as train_
from ddp_trainer.checkpoint import background
from ddp_trainer.checkpoint.manager import CheckpointManager
from ddp_trainer.commands.main import main
from ddp_trainer.config.settings import resolve
from ddp_trainer.observe.heartbeats import HeartbeatWriter
from ddp_trainer.ranks import process_group
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.run.opening import RunRequest, open_run
from ddp_trainer.run.run import Run
from ddp_trainer.run.saving import save
from ddp_trainer.run.state import gather
from ddp_trainer.run.writing import wait_until_out
from ddp_trainer.stop import StopFlag
from ddp_trainer.task import RunEnv, Weighted

KINDS = ("model", "optimizer", "average", "compression", "buffers", "task")


def save_and_gather(argument: dict[str, Any]) -> None:
    """Train and save a checkpoint. Write the whole state at the start and at the end to files.

    Args:
        argument: `task`, its import path; `config` of the run; and `state`, the file to write. The
            state at the start gets the suffix `.start`.
    """
    ranks = Ranks.from_environment(os.environ)
    request = RunRequest(argument["task"], resolve(argument["config"]))
    with contextlib.redirect_stdout(io.StringIO()):
        run = open_run(request, ranks, StopFlag(), HeartbeatWriter(None, ranks, 0))
        _write_state(run, Path(argument["state"] + ".start"))
        train_.loop(run)
        save(run, required=not run.config.checkpoint.background)
        wait_until_out(run, required=True)
    _write_state(run, Path(argument["state"]))
    del run
    gc.collect()
    process_group.leave()


def _write_state(run: Run, file: Path) -> None:
    taken = gather(run.learner, run.task)
    if taken is not None:
        tensors = {kind: dict(getattr(taken, kind).items()) for kind in KINDS}
        rest = {"optimizer": taken.optimizer_rest, "task": taken.task_rest}
        torch.save({"tensors": tensors, "rest": rest}, file)


def train_beside_faulty_process(given: list[str]) -> int:
    """Train with writes in the background, on a volume that `faulty_background` controls.

    Args:
        given: The control file, and the arguments of the command.
    """
    control, *arguments = given
    program = str(Path(__file__).with_name("faulty_background.py"))
    background._COMMAND = [sys.executable, program, control]
    background.STALL_SECONDS = 3.0
    return main(["train", "--checkpoint.background=true", *arguments])


def train_with_failing_part(given: list[str]) -> int:
    """Train while rank 1 cannot write its parts of checkpoints.

    Args:
        given: `once` or `always`, and the arguments of the command.
    """
    times, *arguments = given
    real = CheckpointManager.write_part
    left = [1 if times == "once" else 1000]

    def write_part(self: CheckpointManager, *arguments: Any) -> None:
        left[0] -= 1
        if os.environ["RANK"] == "1" and left[0] >= 0:
            raise OSError(errno.EIO, "Input/output error")
        real(self, *arguments)

    CheckpointManager.write_part = write_part  # type: ignore[method-assign,assignment]
    return main(["train", *arguments])


def train_within_limit(argument: dict[str, Any]) -> int:
    """Train with a limit of the memory that the process allocates beyond its imports.

    Args:
        argument: `limit` in bytes, and `arguments` of the command.
    """
    status = Path("/proc/self/status").read_text().splitlines()
    (used,) = (int(line.split()[1]) << 10 for line in status if line.startswith("VmData:"))
    limit = used + argument["limit"]
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    return main(["train", *argument["arguments"]])


class Bare(torch.nn.Module):
    """A module that sets its first values only in its constructor."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(6, 3))


class BareConfig(BaseModel):
    """No settings."""


class BareTask:
    """A task whose model cannot be deferred."""

    def __init__(self, env: RunEnv) -> None:
        self.train_data: list[int] = list(range(10))
        self.eval_data = None
        with env.deferred_weights():
            self.model = Bare()

    def loss(self, model: torch.nn.Module, batch: Any) -> Weighted:
        """Return a loss, which no test reaches."""
        del model
        return Weighted(batch.sum(), 1)


def build_without_values(_: BareConfig, env: RunEnv) -> BareTask:
    """Return a task whose model cannot be deferred."""
    return BareTask(env)
