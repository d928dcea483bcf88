"""The compared ways to save and to load a state, on one rank of a run.

All of them save the same run, one after another. The product's loop makes the updates of each.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save

from ddp_trainer.ranks.collectives import wait_for_all
from ddp_trainer.run.run import Run
from ddp_trainer.run.saving import save
from ddp_trainer.run.state import restore
from ddp_trainer.run.survivors import Survivor
from ddp_trainer.run.writing import wait_until_out
from ddp_trainer.step import train_step

NOTHING, SURVIVORS, VOLUME, EACH = "no saving", "survivors", "volume", "volume, each update"
TORCH, DCP, RECORD = "torch.save on rank 0", "DCP async_save", "a survivors' record"


class Saves:
    """One rank of a run, and what it has saved."""

    def __init__(self, run: Run, updates: Iterator[Any], folder: Path) -> None:
        self.run, self._updates, self._folder = run, updates, folder
        self._survivor = Survivor(run)
        # The background saves of DCP must not meet the collectives of an update.
        self._group = dist.new_group(backend="gloo")
        self._pending: Any = None
        self.ways: dict[str, Callable[[int], None]] = {
            NOTHING: self._nothing,
            SURVIVORS: self._survivors,
            VOLUME: self._volume,
            EACH: self._each,
            TORCH: self._torch,
            DCP: self._dcp,
        }
        """Function that makes so many updates, by the name of what they save."""

    def size(self) -> int:
        """Return the bytes of weights and optimizer."""
        learner = self.run.learner
        weights = sum(value.nbytes for value in learner.model.state_dict().values())
        states = learner.optimizer.state_dict()["state"].values()
        moments: int = sum(v.nbytes for s in states for v in s.values() if torch.is_tensor(v))
        return int(weights + moments)

    def update(self, *, survive: bool = False) -> None:
        """Make one update, as the loop does."""
        if survive:
            self._survivor.begin_update()
        step = self.run.position.step
        self.run.advance(train_step(self.run.learner, next(self._updates), step, 1.0))

    def begin_updates(self, number: int) -> None:
        """Do only what survivors cost before each of so many updates."""
        for _ in range(number):
            self._survivor.begin_update()

    def keep(self) -> None:
        """Write a record, as at the end of an attempt."""
        with Survivor(self.run).keeping():
            pass

    def _nothing(self, updates: int) -> None:
        for _ in range(updates):
            self.update()

    def _survivors(self, updates: int) -> None:
        for _ in range(updates):
            self.update(survive=True)

    def _volume(self, updates: int) -> None:
        for number in range(updates):
            self.update()
            if number == 0:
                save(self.run)
        # A slow save makes the next ones work in the background, which counts, too.
        wait_until_out(self.run, required=True)

    def _each(self, updates: int) -> None:
        for _ in range(updates):
            self.update()
            save(self.run)
        wait_until_out(self.run, required=True)

    def _torch(self, updates: int) -> None:
        for number in range(updates):
            self.update()
            if number == 0 and self.run.ranks.is_first:
                file = self._folder / "torch.pt"
                with (self._folder / "torch.pt.tmp").open("wb") as target:
                    torch.save(self._state(), target)
                    target.flush()
                    os.fsync(target.fileno())
                (self._folder / "torch.pt.tmp").rename(file)

    def _dcp(self, updates: int) -> None:
        for number in range(updates):
            self.update()
            if number == 0:
                path = self._folder / "dcp"
                if self.run.ranks.is_first:
                    shutil.rmtree(path, ignore_errors=True)
                wait_for_all(self.run.learner.device)
                self._pending = async_save(
                    self._state(), checkpoint_id=path, process_group=self._group
                )
        self._pending.result()  # What it costs after its return counts, too.

    def _state(self) -> dict[str, Any]:
        learner = self.run.learner
        return {
            "model": learner.model.state_dict(),
            "optimizer": learner.optimizer.state_dict(),
            "step": self.run.position.step,
        }

    def loads(self) -> dict[str, Callable[[], None]]:
        """Return functions that load what was saved last, by name. All ranks call them."""
        return {VOLUME: self._load, TORCH: self._load_torch, DCP: self._load_dcp}

    def _load(self) -> None:
        run = self.run
        restore(run.learner, run.task, run.checkpoints.receive(run.learner.device))

    def _load_torch(self) -> None:
        found = torch.load(self._folder / "torch.pt", weights_only=True)
        self._put(found)

    def _load_dcp(self) -> None:
        state = self._state()
        load(state, checkpoint_id=self._folder / "dcp", process_group=self._group)
        self._put(state)

    def _put(self, state: dict[str, Any]) -> None:
        self.run.learner.model.load_state_dict(state["model"])
        self.run.learner.optimizer.load_state_dict(state["optimizer"])


@contextmanager
def quiet_events() -> Iterator[None]:
    """Send what the run prints to nowhere."""
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        for descriptor in (kept, nowhere):
            os.close(descriptor)
