"""Attempts of a small run: one that trains and writes, and one that only starts.

The run is the bundled loop on one or more ranks, with each kind of file that a checkpoint can have.
All ranks are forks of this process, which has imported torch.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from ddp_trainer.checkpoint import volume
from ddp_trainer.checkpoint.snapshot import Snapshot
from ddp_trainer.config.settings import resolve
from ddp_trainer.errors import ReportedError
from ddp_trainer.observe.heartbeats import HeartbeatWriter
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.run.opening import RunRequest, open_run
from ddp_trainer.run.run import Run
from ddp_trainer.run.saving import state_of
from ddp_trainer.run.state import gather
from ddp_trainer.run.survivors import Survivor
from ddp_trainer.stop import StopFlag
from ddp_trainer.train import loop, train

TASK = "tests.trainer.sample_tasks:build_full"
JOB = "torture"
LAST = 24
"""Number of updates of the run."""
EVERY = 4
"""Updates between two checkpoints."""
ALONE = Ranks()
"""The only rank of a run."""
PEER_SECONDS = 120
"""Maximum seconds that a rank waits for another one."""
RUN, RECORDS = "run", "records"
"""Folders of a case: the directory with checkpoints, and the records of the node."""
SETTINGS: dict[str, Any] = {
    "max_steps": LAST,
    "global_batch": 5,
    "schedule": {"name": "constant"},
    "ema": {"decay": 0.9},
    "device": "cpu",
    "log": {"every_steps": 10**6, "format": "json"},
    "eval_every_steps": 10**6,
}
PROBE: dict[str, Any] = {
    "samples": 40, "eval_samples": 0, "dropout": 0.2, "noise": 0.1, "batch_norm": True,
}  # fmt: skip
_STATE = ("step", "samples", "epoch", "scaler", "nonfinite", "data_size", "world_size", "optimizer")
"""Fields of `state.json` that are equal in each attempt that reaches a step."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """Request for one attempt."""

    number: int
    volume: bool = True
    """Whether the run has a checkpoint directory."""
    memory: bool = True
    """Whether the node keeps records."""
    fail_after: int = -1
    """Updates of this attempt after which its task fails; negative for never."""
    copies: int | None = None
    """Updates between two copies to memory. None for no copies."""
    job: str = JOB
    strategy: str = "ddp"
    world: int = 1
    """Number of ranks. They divide the write of each checkpoint."""
    every: int = EVERY
    """Updates between two checkpoints."""
    background: bool = False
    """Whether a process writes the checkpoints, except the last one."""
    settings: dict[str, Any] = field(default_factory=dict)

    def request(self, home: Path) -> RunRequest:
        """Return the request of this attempt in a case's folder."""
        probe = PROBE | {"die_rank": 0, "die_after": self.fail_after, "die_how": "raise"}
        checkpoint: dict[str, Any] = {
            "every_steps": self.every, "keep": 2, "memory_every_steps": self.copies,
            "background": self.background,
        }  # fmt: skip
        if self.world > 1:
            checkpoint["part_mb"] = 1e-6
            # Each save averages the statistics of all ranks, so they depend on the saves before.
            probe["batch_norm"] = False
        if self.volume:
            checkpoint["directory"] = str(home / RUN)
        parallel = {"strategy": self.strategy, "timeout_seconds": PEER_SECONDS}
        settings = SETTINGS | {"task": probe, "checkpoint": checkpoint, "parallel": parallel}
        settings |= self.settings
        records = home / RECORDS if self.memory else None
        return RunRequest(TASK, resolve(settings), self.number, self.job, records)

    def train(self, home: Path, ranks: Ranks = ALONE) -> str:
        """Train in this process, as the command does. Return the sentence of a reported error."""
        with _quick():
            try:
                train(self.request(home), ranks, StopFlag(), HeartbeatWriter(None, ranks, 0))
            except ReportedError as error:
                return str(error)
            except RuntimeError as error:
                if "the probe must fail" not in str(error):
                    raise
        return ""

    def start(self, home: Path, ranks: Ranks = ALONE) -> str:
        """Start in this process without training. Return a description of the state as JSON."""
        with _quick():
            try:
                run = open_run(
                    self.request(home), ranks, StopFlag(), HeartbeatWriter(None, ranks, 0)
                )
            except ReportedError as error:
                return json.dumps({"refused": str(error), "code": int(error.code)})
            return json.dumps({"step": run.position.step, "digest": digest(run)})

    def survive(self, home: Path, records: Path) -> str:
        """Train in this process until the task fails, and keep the state in another folder."""
        with _quick():
            run = open_run(
                self.request(home), Ranks(), StopFlag(), HeartbeatWriter(None, Ranks(), 0)
            )
            run.records = records
            try:
                loop(run, Survivor(run))
            except RuntimeError as error:
                if "the probe must fail" not in str(error):
                    raise
        return ""


@contextmanager
def _quick() -> Iterator[None]:
    """Shorten the waits between two tries to reach the volume, in a forked process."""
    _set_environment()
    torch.set_num_threads(1)
    with mock.patch.object(volume, "RETRY_WAITS", (0.001,) * len(volume.RETRY_WAITS)):
        yield


def digest(run: Run) -> str:
    """Return a hash of the whole state of a run: all tensors, and the position. Rank 0 has it."""
    taken = gather(run.learner, run.task)
    if taken is None:
        return ""
    own = {name: getattr(state_of(run), name) for name in _STATE}
    own["nonfinite"] = own["nonfinite"].model_dump()
    return hashed(taken, own)


def hashed(taken: Snapshot, state: dict[str, Any]) -> str:
    """Return a hash of a snapshot and of the fields of its state."""
    found = hashlib.blake2b(digest_size=16)
    rest = [state, taken.optimizer_rest, taken.task_rest]
    found.update(json.dumps(rest, sort_keys=True).encode())
    for part in ("model", "optimizer", "average", "compression", "buffers", "task"):
        for name, tensor in sorted(getattr(taken, part).items()):
            plain = tensor.detach().cpu().contiguous()
            found.update(f"{part}/{name} {plain.dtype} {tuple(plain.shape)}\n".encode())
            found.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


class _Witness(Survivor):
    """Survivor that only notes the state before each update."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.run, self.digests = run, dict[int, str]()

    def begin_update(self) -> None:
        self.digests[self.run.position.step] = digest(self.run)


def undisturbed(attempt: Attempt, home: Path, ranks: Ranks) -> str:
    """Train the whole run without a checkpoint. Return the hash of its state by step, as JSON.

    Args:
        attempt: An attempt with the same ranks.
        home: Folder of the case.
        ranks: This process's rank.
    """
    alone = Attempt(1, volume=False, memory=False, strategy=attempt.strategy, world=attempt.world)
    with _quick():
        heartbeats = HeartbeatWriter(None, ranks, 0)
        run = open_run(alone.request(home), ranks, StopFlag(), heartbeats)
        witness = _Witness(run)
        loop(run, witness)
        return json.dumps(witness.digests | {run.position.step: digest(run)})


def _set_environment() -> None:
    """Remove the variables of a job, which would change a run."""
    for name in [name for name in os.environ if name.startswith("DDP_")]:
        del os.environ[name]
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ["OMP_NUM_THREADS"] = "1"
