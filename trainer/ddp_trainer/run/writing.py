"""Write a checkpoint: on rank 0 alone, divided over the ranks, or in the background.

    write
      wait_until_out             every rank: the previous checkpoint is written, or given up
      _plan                      every rank: what it writes (`checkpoint.division`)
      _hand_over                 every rank: copy its part to memory, for the process of its node
    or, while training waits:
      _write_in_parts            every rank: write its part; rank 0 commits
    or:
      gather, _write_alone       rank 0: write the whole state

A large checkpoint is written in the background (`checkpoint.background`), unless it is required:
at the end of a run, or when the run stops. So is a small one after a slow one. All ranks wait for
each other between these steps, and raise the same errors. This wait may be longer than the timeout
of a collective.
"""

import os
import secrets
import time
from dataclasses import dataclass

from ddp_trainer.checkpoint import background
from ddp_trainer.checkpoint.background_process import SaveOrder
from ddp_trainer.checkpoint.division import Pieces, holding, pieces_of, quotas
from ddp_trainer.checkpoint.division import writers as choose_writers
from ddp_trainer.checkpoint.format import CheckpointName, json_bytes
from ddp_trainer.checkpoint.snapshot import Checkpoint, Snapshot
from ddp_trainer.checkpoint.volume import volume_error
from ddp_trainer.errors import FencedError, ReportedError
from ddp_trainer.ranks.collectives import (
    by_rank,
    errors_of_first_rank,
    first_failure,
    on_first_rank,
)
from ddp_trainer.run.replicas import compared
from ddp_trainer.run.run import Run
from ddp_trainer.run.state import gather, gather_documents, own_state
from ddp_trainer.saved_state import SavedState

_POLL_SECONDS = 0.02
_NOTABLE_SECONDS = 0.5
"""Seconds of waiting for the previous checkpoint from which the run says so."""


def write(run: Run, state: SavedState, start: float, *, required: bool) -> None:
    """Write a checkpoint. Every rank must call this.

    Args:
        run: The run, between two updates.
        state: The state of the run, as JSON.
        start: Value of `time.monotonic()` at the start of the save.
        required: Whether a failure ends the run, and whether training waits for the write.

    Raises:
        ReportedError: On every rank, if the checkpoint is required and the volume fails.
    """
    if not wait_until_out(run, required=required):
        return
    plan = _plan(run)
    in_background = not required and plan is not None and _is_for_background(run, plan)
    if in_background and plan is not None and _hand_over(run, plan, state, start):
        return
    if plan is not None and len(plan.writers) > 1:
        _write_in_parts(run, plan, state, start, required=required)
    else:
        taken = gather(run.learner, run.task)
        with errors_of_first_rank(run.learner.device):
            if taken is not None:
                _write_alone(run, Checkpoint(state, taken), start, required=required)
    run.background.waited = max(run.background.waited, time.monotonic() - start)


def _write_alone(run: Run, checkpoint: Checkpoint, start: float, *, required: bool) -> None:
    """Write a whole checkpoint. Only rank 0 calls this function."""
    try:
        saved = run.checkpoints.save(checkpoint)
    except OSError as error:
        _failed(run, error, required=required)
        return
    if saved:
        _report(run, time.monotonic() - start)


def _report(run: Run, seconds: float, background_seconds: float | None = None) -> None:
    """Report the newest checkpoint. Only rank 0 calls this function.

    Args:
        run: The run.
        seconds: Time for which the save stopped training.
        background_seconds: Time of the write in the background, if there was one.
    """
    note = run.checkpoints.measured(seconds)
    newest = run.checkpoints.newest
    if newest is not None:
        run.report.saved(newest, seconds, background_seconds)
    if note:
        run.report.note(note)


def _failed(run: Run, error: OSError, *, required: bool) -> None:
    """Warn that a checkpoint was not saved, or raise an error if it is required."""
    sentence = (
        f"checkpoint of step {run.position.step} was not saved to"
        f" {run.config.checkpoint.directory}: {error}"
    )
    if required:
        raise volume_error(sentence, error, ReportedError) from error
    run.report.warn(f"{sentence}; training continues")


@dataclass(frozen=True, slots=True)
class _Plan:
    """Division of a checkpoint over the ranks that write it."""

    own: Snapshot
    """This rank's state."""
    pieces: Pieces
    """What this rank writes."""
    writers: list[int]
    total: int
    """Bytes of the whole checkpoint."""

    def part(self, rank: int) -> tuple[int, int]:
        """Return the number of a rank's part, from 1, and the number of parts."""
        return self.writers.index(rank) + 1, len(self.writers)


def _plan(run: Run) -> _Plan | None:
    """Divide the write of a checkpoint, or return None if rank 0 must gather it.

    Every rank must call this. Only tensors that the ranks have just compared count as equal on all
    ranks. So a checkpoint never mixes the state of ranks that differ.
    """
    learner, ranks, shared = run.learner, run.ranks, run.checkpoints.shared
    own = own_state(learner, run.task)
    divides = run.replicas.enabled and shared
    equal = {id(tensor) for tensor in compared(learner).values()} if divides else set()
    splits = learner.strategy.splits_optimizer
    found = holding(own, ranks.rank, equal, splits_optimizer=splits)
    if found is None:
        return None
    sizes = by_rank(found.own_bytes, learner.device)
    limit = round(run.config.checkpoint.part_mb * 2**20)
    writers = choose_writers(sizes, found.equal_bytes, limit)
    complete = {rank for rank, size in enumerate(sizes) if size} <= set(writers)
    if not complete or (len(writers) > 1 and not shared):
        return None
    gather_documents(own, learner)
    shares = quotas([sizes[rank] for rank in writers], found.equal_bytes)
    mine = ranks.rank in writers
    pieces = pieces_of(found, shares, writers.index(ranks.rank)) if mine else {}
    return _Plan(own, pieces, writers, sum(sizes) + found.equal_bytes)


def _write_in_parts(
    run: Run, plan: _Plan, state: SavedState, start: float, *, required: bool
) -> None:
    """Write a checkpoint together with the other ranks. Every rank must call this."""
    step, device, checkpoints = run.position.step, run.learner.device, run.checkpoints
    save = _begin_save(run)
    if save is None:
        return

    def write_part() -> None:
        checkpoints.write_part(step, save, plan.part(run.ranks.rank), plan.pieces)

    def finish() -> None:
        if checkpoints.finish(len(plan.writers), save, Checkpoint(state, plan.own)):
            _report(run, time.monotonic() - start)

    failure = first_failure(lambda: checkpoints.begin(step, save), [0], device)
    if failure is None:
        try:
            failure = first_failure(write_part, plan.writers, device)
            failure = failure or first_failure(finish, [0], device)
        finally:
            if run.ranks.is_first and not checkpoints.is_saved(step):
                checkpoints.abandon(step)
    if failure is not None:
        _failed(run, failure, required=required)


def _begin_save(run: Run) -> str | None:
    """Return the random text of a new save on every rank, or None if this step is saved."""

    def draw() -> str | None:
        is_saved = run.checkpoints.is_saved(run.position.step)
        return None if is_saved else secrets.token_hex(8)

    save: str | None = on_first_rank(draw, run.learner.device)
    return save


def _is_for_background(run: Run, plan: _Plan) -> bool:
    """Return whether training goes on while the checkpoint is written. Equal on all ranks."""
    wanted = run.config.checkpoint.background
    if wanted != "auto":
        return wanted
    if plan.total > run.config.checkpoint.part_mb * 2**20:
        return True
    waited = max(by_rank(round(1000 * run.background.waited), run.learner.device)) / 1000
    if waited <= background.SLOW_SECONDS:
        return False
    if run.background.step < 0:
        run.report.note(
            "further checkpoints are written in the background, because one stopped training for"
            f" {waited:.1f} s"
        )
    return True


def _hand_over(run: Run, plan: _Plan, state: SavedState, start: float) -> bool:
    """Copy this rank's part to its slot, for the process that writes. Every rank must call this.

    Returns:
        Whether the save is in the hands of the processes, or exists. Otherwise a warning says why
        training must wait for the write.

    Raises:
        InputError: On every rank, if the checkpoint would contain what cannot be read again.
    """
    ranks, device, slot = run.ranks, run.learner.device, run.background.slot
    save = _begin_save(run)
    if save is None:
        return True
    size = sum(piece.nbytes for pieces in plan.pieces.values() for piece in pieces)
    growth = by_rank(max(0, size - slot.size), device)
    node = range(ranks.rank - ranks.local_rank, ranks.rank - ranks.local_rank + _local(run))
    is_first_of_node = ranks.local_rank == 0
    leaders = [rank for rank, flag in enumerate(by_rank(int(is_first_of_node), device)) if flag]

    def check() -> None:
        short = background.room_for(sum(growth[rank] for rank in node))
        if short is not None:
            raise OSError(short)

    def fill() -> None:
        slot.fill(plan.part(ranks.rank)[0], plan.pieces)

    failure = first_failure(check, leaders, device) or first_failure(fill, plan.writers, device)
    places = list(zip(by_rank(os.getpid(), device), by_rank(slot.descriptor, device), strict=True))

    def begin() -> None:
        own = [places[rank] for rank in node if rank in plan.writers]
        if not own and not ranks.is_first:
            return
        job = _order(run, plan, state, save, own)
        run.background.blocked = time.monotonic() - start
        run.background.step = run.position.step
        run.background.process.start(job)

    failure = failure or first_failure(begin, leaders, device)
    if failure is None:
        return True
    run.background.process.cancel()
    run.report.warn(
        f"checkpoint of step {run.position.step}: training waits for its write, because it cannot"
        f" be written in the background: {failure}"
    )
    return False


def _order(
    run: Run, plan: _Plan, state: SavedState, save: str, slots: list[tuple[int, int]]
) -> SaveOrder:
    """Return the order for the process that writes a save.

    Raises:
        InputError: If the checkpoint would contain what cannot be read again.
    """
    checkpoint = Checkpoint(state, plan.own)
    lead = run.checkpoints.lead(checkpoint, plan.total) if run.ranks.is_first else None
    for document in lead.documents.values() if lead else ():
        json_bytes(document)  # One that is too large ends the run now, not in the process.
    return SaveOrder(
        directory=str(run.config.checkpoint.directory),
        name=str(CheckpointName(run.position.step, run.attempt)),
        parts=len(plan.writers),
        claim=run.checkpoints.identity(save),
        slots=slots,
        rate=_rate(run),
        lead=lead,
    )


def _local(run: Run) -> int:
    return run.ranks.local_world_size


def _rate(run: Run) -> float | None:
    limit = run.config.checkpoint.max_mb_per_second
    return None if limit is None else limit * 2**20


def poll(run: Run) -> None:
    """Report what has become of the checkpoint in the background. It costs about a microsecond.

    Raises:
        FencedError: On rank 0, if a newer attempt owns the directory.
    """
    process = run.background.process
    if process.job is None:
        return
    done = process.finished()
    if done is None:
        warning = process.warning()
        if warning is not None:
            run.report.warn(warning)
        return
    if not run.ranks.is_first:
        return
    if done.state == "fenced":
        raise FencedError(done.error)
    run.checkpoints.committed(done.known or [], done.at)
    took = time.monotonic() - run.background.process.started
    _report(run, run.background.blocked, took)


def wait_until_out(run: Run, *, required: bool) -> bool:
    """Wait until the previous checkpoint is written. Every rank must call this.

    A write that makes no progress is not waited for: a required save gives it up, and any other
    save is left out, with a warning.

    Returns:
        Whether a new checkpoint may be written.
    """
    device, process, start = run.learner.device, run.background.process, time.monotonic()
    has_waited = False
    while True:
        poll(run)
        state = max(by_rank(process.state(), device))
        if state == background.IDLE:
            break
        if state == background.TROUBLED:
            if not required:
                run.checkpoints.postpone()
                run.report.warn(
                    f"the checkpoint of step {run.position.step} is left out, because that of step"
                    f" {run.background.step} is not written yet"
                )
                return False
            process.cancel()
            if run.ranks.is_first:
                run.report.warn(
                    f"the checkpoint of step {run.background.step} is given up, because it cannot"
                    " be written in time"
                )
                run.checkpoints.abandon(run.background.step)
            break
        has_waited = True
        time.sleep(_POLL_SECONDS)
    waited = time.monotonic() - start
    if has_waited and waited > _NOTABLE_SECONDS:
        run.report.note(
            f"training waited {waited:.1f} s until the checkpoint of step {run.background.step} was"
            " written"
        )
    return True
