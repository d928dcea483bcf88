"""Write the state of a run to memory when this rank must end, so that no finished update is lost.

A rank ends early when it loses a peer, when its own code fails, or when the agent asks it to leave
for another attempt. If its state is whole then (`checkpoint.gate`), it writes parts of a record
(`checkpoint.records`):

- In the main thread, after an error.
- In another thread, after SIGTERM with the agent's request, because the main thread may wait in a
  collective for ever. Then the process ends.
- In another thread, while a run that stops on request saves its checkpoint.

A rank inside an update, or before the first update of its attempt, writes nothing. Nor does a rank
of local SGD between two averages, or one whose newest gradients were not finite. `run.device_state`
makes the same true on a GPU, where ranks write only if `checkpoint.memory` is true.
"""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ddp_trainer.checkpoint import records
from ddp_trainer.checkpoint.record_writer import NoRoomError, write
from ddp_trainer.checkpoint.records import Part
from ddp_trainer.checkpoint.snapshot import Checkpoint
from ddp_trainer.errors import ReplicasDifferError, ReportedError
from ddp_trainer.learner import Learner
from ddp_trainer.numerics.bit_hash import bit_hash
from ddp_trainer.run.device_state import HostState, state_on
from ddp_trainer.run.dividing import Divided, divide
from ddp_trainer.run.keeping import Keeper
from ddp_trainer.run.replicas import compared
from ddp_trainer.run.run import Run
from ddp_trainer.run.saving import state_of
from ddp_trainer.run.settling import settle
from ddp_wire.contract import ExitCode
from ddp_wire.records import leaving, must_leave

GATE_SECONDS = 5.0
"""Maximum seconds for which a rank that must leave waits for the end of its update. The next
attempt waits as long for a rank that hangs in one."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A part of a record that this rank may write."""

    part: Part
    checkpoint: Checkpoint

    def size(self, ranks: int) -> int:
        """Return the bytes of this part in a checkpoint of so many ranks."""
        return self.checkpoint.snapshot.nbytes() * (1 if self.part.rank is None else ranks)


class Survivor:
    """Writer of this rank's parts of a record. It writes one record at most."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._folder = run.records
        self._keeper = Keeper(run.learner, run.task) if self._folder is not None else None
        self._device = HostState() if self._folder is None else state_on(run.learner.device)
        run.learner.finish_passes = self._device.finish_passes
        self._lock = threading.Lock()
        self._written = False

    def begin_update(self) -> None:
        """Copy what the next update changes before its end."""
        if self._keeper is not None:
            self._keeper.begin_update(self._run.position.step)
            self._device.mark()

    def end_update(self) -> None:
        """Mark the end of an update."""
        if self._keeper is not None:
            self._device.mark()

    def write_after(self, error: BaseException) -> None:
        """Write a record after an error, if the error has left the state whole."""
        if isinstance(error, ReplicasDifferError) and self._run.records is not None:
            records.clear(self._run.records)  # The difference may be older than they are.
        lasting = isinstance(error, ReportedError) and error.code == ExitCode.BAD_INPUT
        if not lasting and self._run.learner.gate.left_open_by(error):
            self._write()

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Write a record while the run saves its checkpoint. Every rank must call this.

        The record is the same state as the checkpoint, so the next attempt need not read the
        volume, and does not depend on it.
        """
        if self._folder is None:
            yield
            return
        settle(self._run)
        saves = {"saves": self._run.checkpoints.enabled}
        thread = threading.Thread(target=self._write, kwargs=saves, name="survivor", daemon=True)
        thread.start()
        try:
            yield
        finally:
            thread.join()

    def leave_if_asked(self) -> None:
        """Write a record and end the process, if the agent asked for it. Return at once."""
        if self._folder is not None and must_leave(self._folder, self._run.attempt):
            leave = partial(self._leave, self._folder)
            threading.Thread(target=leave, name="survivor", daemon=True).start()

    def _leave(self, folder: Path) -> None:
        with leaving(folder), self._run.learner.gate.held(GATE_SECONDS) as whole:
            if whole:
                self._write()
        if whole:
            os._exit(ExitCode.PREEMPTED)

    def _write(self, *, saves: bool = False) -> None:
        """Write the parts of a record. Print a sentence about it, because nobody else reports.

        Args:
            saves: Whether the run saves a checkpoint at the same time.
        """
        run, folder, keeper = self._run, self._folder, self._keeper
        with self._lock:
            if self._written or folder is None or keeper is None or run.before_first_update:
                return
            self._written = True
            with self._device.reading() as whole:
                if whole and _is_usable(run.learner):
                    _try_to_write(run, folder, keeper, saves=saves)


def is_broken(learner: Learner) -> bool:
    """Return whether an update since the last report has left weights that are not finite."""
    return not learner.guard.protects and bool(learner.totals.read()[2].item())


def _is_usable(learner: Learner) -> bool:
    """Return whether the state is that of the run, and has no weights that are not finite."""
    apart = learner.local_sgd is not None and learner.local_sgd.apart
    # A pass copies the matrices of powersgd, and on a GPU the copies may not be finished.
    feedback = learner.compression is not None and learner.compression.has_feedback
    return not (apart or is_broken(learner) or (feedback and learner.device.type != "cpu"))


def _try_to_write(run: Run, folder: Path, keeper: Keeper, *, saves: bool) -> None:
    """Write this rank's parts, or print a sentence about the reason why not."""
    try:
        _write_parts(run, folder, keeper, saves=saves)
    except (OSError, ReportedError, NoRoomError) as error:
        if saves and isinstance(error, NoRoomError):
            return  # The checkpoint has the same state, so nothing is lost.
        step = run.position.step
        say(run, f"the state after update {step} was not kept in memory: {error}")


def _write_parts(run: Run, folder: Path, keeper: Keeper, *, saves: bool) -> None:
    """Write this rank's own part, and the common part unless another rank of the node does."""
    start = time.monotonic()
    parts = parts_of(run, keeper)
    # Rank 0 may gather the whole state to save it.
    beside = sum(each.size(run.ranks.world_size) for each in parts) if saves else 0
    written = [each for each in parts if write(folder, each.part, each.checkpoint, beside)]
    if written:
        took = time.monotonic() - start
        size = sum(each.checkpoint.snapshot.nbytes() for each in written) / 2**20
        part = "" if len(written) == len(parts) else "its part of "
        say(
            run,
            f"kept {part}the state after update {run.position.step} in memory"
            f" ({size:,.1f} MiB, {took:.2f} s)",
        )


def parts_of(run: Run, keeper: Keeper) -> list[Prepared]:
    """Return the parts that this rank may write, its own one first."""
    state, divided = state_of(run), divided_state(run, keeper)
    common = _describe(run, divided)
    found = [Prepared(common, Checkpoint(state, divided.common))]
    if divided.division != "whole":
        own = common.model_copy(update={"rank": run.ranks.rank})
        found.insert(0, Prepared(own, Checkpoint(state, divided.own)))
    return found


def divided_state(run: Run, keeper: Keeper) -> Divided:
    """Return this rank's state, without copying weights."""
    splits = run.learner.strategy.splits_optimizer
    return divide(keeper.snapshot(run.position.step), splits_optimizer=splits)


def _describe(run: Run, divided: Divided) -> Part:
    """Return the description of the common part."""
    buffers = run.learner.buffers
    per_rank = buffers is not None and buffers.policy == "per_rank" and bool(buffers.names)
    return Part(
        step=run.position.step,
        attempt=run.attempt,
        rank=None,
        writer=run.ranks.rank,
        world_size=run.ranks.world_size,
        rollbacks=run.nonfinite.counts().rollbacks,
        division=divided.division,
        digest=_digest(run),
        residues=bool(len(divided.own.compression)),
        buffers=per_rank,
        job=run.job,
    )


def _digest(run: Run) -> int:
    """Return the hash of the state that is equal on all ranks, or 0 if they do not compare.

    On a GPU the hash would need memory of a device that may not give any back.
    """
    learner = run.learner
    if not run.replicas.enabled or learner.device.type != "cpu":
        return 0
    return int(bit_hash(compared(learner).values(), learner.device).item())


def say(run: Run, sentence: str) -> None:
    """Print a sentence of this rank."""
    print(f"rank {run.ranks.rank}: {sentence}", file=sys.stderr, flush=True)
