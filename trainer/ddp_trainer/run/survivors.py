"""Write the state of a run to memory when this rank must end, so that no finished update is lost.

A rank ends early when it loses a peer, when its own code fails, or when the agent asks it to leave
for another attempt. If its state is whole then (`checkpoint.gate`), it writes a record
(`checkpoint.records`):

- In the main thread, after an error.
- In another thread, after SIGTERM with the agent's request, because the main thread may wait in a
  collective for ever. Then the process ends.

A rank inside an update, or before the first update of its attempt, writes nothing. Nor does a rank
that holds only a part of the state, see `holds_everything`. On a GPU the state may still change
while the host waits, so ranks with a GPU write nothing.
"""

import os
import sys
import threading
import time

from ddp_trainer.checkpoint import records
from ddp_trainer.checkpoint.format import CheckpointName
from ddp_trainer.checkpoint.snapshot import Checkpoint
from ddp_trainer.errors import ReportedError
from ddp_trainer.numerics.bit_hash import bit_hash
from ddp_trainer.run.keeping import Keeper
from ddp_trainer.run.replicas import compared
from ddp_trainer.run.run import Run
from ddp_trainer.run.saving import state_of
from ddp_wire.contract import ExitCode
from ddp_wire.records import must_leave

GATE_SECONDS = 30.0
"""Maximum seconds for which a rank that must leave waits for the end of its update."""


class Survivor:
    """Writer of this rank's record. It writes at most one."""

    def __init__(self, run: Run) -> None:
        self._run = run
        able = run.records is not None and holds_everything(run)
        self._folder = run.records if able else None
        self._keeper = Keeper(run.learner, run.task) if able else None
        self._lock = threading.Lock()
        self._written = False

    def begin_update(self) -> None:
        """Copy what the next update changes before its end."""
        if self._keeper is not None:
            self._keeper.begin_update(self._run.position.step)

    def write_after(self, error: BaseException) -> None:
        """Write a record after an error, if the error has left the state whole."""
        lasting = isinstance(error, ReportedError) and error.code == ExitCode.BAD_INPUT
        if not lasting and self._run.learner.gate.left_open_by(error):
            self._write()

    def leave_if_asked(self) -> None:
        """Write a record and end the process, if the agent asked for it. Return at once."""
        if self._folder is not None and must_leave(self._folder, self._run.attempt):
            threading.Thread(target=self._leave, name="survivor", daemon=True).start()

    def _leave(self) -> None:
        with self._run.learner.gate.held(GATE_SECONDS) as whole:
            if whole:
                self._write()
                os._exit(ExitCode.PREEMPTED)

    def _write(self) -> None:
        """Write a record. Print a sentence about it, because nobody else reports now."""
        run, folder, keeper = self._run, self._folder, self._keeper
        with self._lock:
            if self._written or folder is None or keeper is None or run.before_first_update:
                return
            if not holds_everything(run):
                return
            self._written = True
            start, step = time.monotonic(), run.position.step
            try:
                checkpoint = Checkpoint(state_of(run), keeper.snapshot(step))
                name = CheckpointName(step, run.attempt)
                if not records.write(folder, name, checkpoint, digest=self._digest()):
                    return
            except (OSError, ReportedError, records.NoRoomError) as error:
                _say(run, f"the state after update {step} was not kept in memory: {error}")
                return
            took = time.monotonic() - start
            size = checkpoint.snapshot.nbytes() / 2**20
            _say(
                run, f"kept the state after update {step} in memory ({size:,.1f} MiB, {took:.2f} s)"
            )

    def _digest(self) -> int:
        """Return the hash of the state that is equal on all ranks, or 0 if they do not compare."""
        if not self._run.replicas.enabled:
            return 0
        learner = self._run.learner
        return int(bit_hash(compared(learner).values(), learner.device).item())


def holds_everything(run: Run) -> bool:
    """Return whether this rank alone holds the whole state of the run now.

    It does not with zero1 and fsdp2, between two averages of local SGD, and if each rank has its
    own residues of powersgd or its own buffers.
    """
    learner = run.learner
    if run.ranks.world_size == 1:
        return learner.device.type == "cpu"
    apart = learner.local_sgd is not None and learner.local_sgd.apart
    residues = learner.compression is not None and learner.compression.has_feedback
    own_buffers = learner.buffers is not None and learner.buffers.policy == "per_rank"
    own = apart or residues or own_buffers
    return learner.strategy.config.strategy == "ddp" and not own and learner.device.type == "cpu"


def _say(run: Run, sentence: str) -> None:
    print(f"rank {run.ranks.rank}: {sentence}", file=sys.stderr, flush=True)
