"""Save checkpoints of an open run, and roll back to the newest checkpoint.

Functions call each other in this order to write a checkpoint:

    save                         every rank: check that the weights are finite, and settle
      gather                     every rank: the whole state, in host memory of rank 0
      _commit                    rank 0: add the state of the run; report the result
        CheckpointManager.save   rank 0: skip a step that is saved already; delete old checkpoints
          writer.commit          rank 0: write the files and the manifest, then rename the folder

The ranks divide the write of a large checkpoint, if all of them can write to the directory:

    save
      _plan                      every rank: what it writes (`checkpoint.division`)
      _save_in_parts
        CheckpointManager.begin  rank 0: create the folder
        … .write_part            each rank: write its part
        … .finish                rank 0: write the manifest, then rename the folder

All ranks wait for each other between these steps, and raise the same errors. This wait may be
longer than the timeout of a collective.
"""

import math
import platform
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from ddp_trainer.checkpoint import records
from ddp_trainer.checkpoint.division import Pieces, holding, pieces_of, quotas
from ddp_trainer.checkpoint.division import writers as choose_writers
from ddp_trainer.checkpoint.snapshot import Checkpoint, Snapshot
from ddp_trainer.checkpoint.volume import volume_error
from ddp_trainer.errors import ReportedError
from ddp_trainer.numerics.guard import NonFiniteError
from ddp_trainer.ranks import process_group
from ddp_trainer.ranks.collectives import (
    by_rank,
    errors_of_first_rank,
    first_failure,
    on_first_rank,
    sum_over_ranks,
)
from ddp_trainer.run.replicas import compared
from ddp_trainer.run.run import Run
from ddp_trainer.run.settling import settle
from ddp_trainer.run.state import gather, gather_documents, own_state, restore
from ddp_trainer.saved_state import SavedConfig, SavedState
from ddp_wire.activity import Activity


def save(run: Run, *, required: bool = False) -> None:
    """Save a checkpoint of this step, unless one exists. Every rank must call this.

    All other ranks wait until rank 0 has written the checkpoint. This wait has its own limit,
    because a large checkpoint may take longer than the timeout of a collective.

    Args:
        run: The run, between two updates.
        required: Whether a failure ends the run. Otherwise it only causes a warning: training
            continues until the next checkpoint is due.

    Raises:
        ReportedError: On every rank, if the checkpoint is required and the volume fails.
        NonFiniteError: If the checkpoint is required and the weights are not finite.
        ReplicasDifferError: On every rank, if the weights of the ranks differ.
    """
    if not run.checkpoints.enabled:
        return
    if _weights_broken(run, required=required):
        return
    settle(run)
    run.learner.trace.enter(Activity.CHECKPOINT)
    with run.report.apart("checkpoint"), run.learner.gate, _volume_timeout(run):
        start = time.monotonic()
        plan = _plan(run)
        if plan is not None:
            _save_in_parts(run, plan, start, required=required)
            return
        taken = gather(run.learner, run.task)
        with errors_of_first_rank(run.learner.device):
            if taken is not None:
                _commit(run, taken, start, required=required)


def _commit(run: Run, taken: Snapshot, start: float, *, required: bool) -> None:
    """Write a checkpoint. Only rank 0 calls this function.

    Args:
        run: The run.
        taken: Whole snapshot of the learner and the task.
        start: Value of `time.monotonic()` at the start of the save.
        required: Whether a failure ends the run.
    """
    try:
        saved = run.checkpoints.save(Checkpoint(state_of(run), taken))
    except OSError as error:
        _failed(run, error, required=required)
        return
    if saved is None:
        return
    seconds = time.monotonic() - start
    note = run.checkpoints.measured(seconds)
    run.report.saved(run.checkpoints.newest or saved, seconds)
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


def _plan(run: Run) -> _Plan | None:
    """Divide the write of a checkpoint, or return None if rank 0 writes it. Every rank must call.

    Only tensors that the ranks have just compared count as equal on all ranks. So a checkpoint
    never mixes the state of ranks that differ.
    """
    learner, ranks = run.learner, run.ranks
    if ranks.world_size == 1 or not run.checkpoints.shared:
        return None
    own = own_state(learner, run.task)
    equal = {id(tensor) for tensor in compared(learner).values()} if run.replicas.enabled else set()
    splits = learner.strategy.splits_optimizer
    found = holding(own, ranks.rank, equal, splits_optimizer=splits)
    if found is None:
        return None
    sizes = by_rank(found.own_bytes, learner.device)
    limit = round(run.config.checkpoint.part_mb * 2**20)
    writers = choose_writers(sizes, found.equal_bytes, limit)
    if len(writers) == 1:
        return None
    gather_documents(own, learner)
    shares = quotas([sizes[rank] for rank in writers], found.equal_bytes)
    mine = ranks.rank in writers
    pieces = pieces_of(found, shares, writers.index(ranks.rank)) if mine else {}
    return _Plan(own, pieces, writers)


def _save_in_parts(run: Run, plan: _Plan, start: float, *, required: bool) -> None:
    """Write a checkpoint together with the other ranks. Every rank must call this."""
    step, device, checkpoints = run.position.step, run.learner.device, run.checkpoints
    count, rank = len(plan.writers), run.ranks.rank

    def write() -> None:
        checkpoints.write_part(step, (plan.writers.index(rank) + 1, count), plan.pieces)

    def finish() -> None:
        saved = checkpoints.finish(count, Checkpoint(state_of(run), plan.own))
        if saved:
            run.report.saved(saved, time.monotonic() - start)

    if on_first_rank(lambda: checkpoints.is_saved(step), device):
        return
    failure = first_failure(lambda: checkpoints.begin(step), [0], device)
    if failure is None:
        try:
            failure = first_failure(write, plan.writers, device)
            failure = failure or first_failure(finish, [0], device)
        finally:
            if run.ranks.is_first and not checkpoints.is_saved(step):
                checkpoints.abandon(step)
    if failure is not None:
        _failed(run, failure, required=required)


def finish_mirror(run: Run) -> None:
    """Wait until the newest checkpoint of a complete run is in the mirror. All ranks call this.

    A run that is not complete does not wait, because its next attempt goes on with the copy.
    """
    config = run.config.checkpoint
    if config.mirror is None:
        return
    run.learner.trace.enter(Activity.CHECKPOINT)
    with _volume_timeout(run), errors_of_first_rank(run.learner.device):
        mirror = run.checkpoints.mirror
        warning = mirror.finish(config.mirror_seconds) if mirror is not None else None
        if warning is not None:
            run.report.warn(warning)


def roll_back(run: Run) -> None:
    """Restore weights and optimizer from the newest checkpoint; data and schedule continue.

    So the run skips all data since that checkpoint, including the data that caused the failure, as
    in Chowdhery et al. 2022 (arXiv:2204.02311), section 5.1. Every rank must call it.

    Raises:
        NonFiniteError: If no checkpoint exists yet.
        VolumeError: On every rank, if rank 0 cannot read the checkpoint.
    """
    device = run.learner.device
    found = on_first_rank(lambda: run.checkpoints.newest is not None, device)
    if not found:
        raise NonFiniteError(
            "training: gradients were not finite, and there is no checkpoint yet to roll back to"
        )
    # A read from a slow volume may take much longer than an exchange.
    run.learner.trace.enter(Activity.CHECKPOINT)
    if run.records is not None and run.ranks.local_rank == 0:
        records.clear(run.records)  # The state in it led to the rollback.
    with _volume_timeout(run):
        restore(run.learner, run.task, run.checkpoints.receive(device))


def _volume_timeout(run: Run) -> AbstractContextManager[None]:
    """Return a context with a longer timeout, in which ranks wait while rank 0 uses the volume."""
    own = run.config.parallel
    usual = own.first_timeout if run.before_first_update else own.timeout_seconds
    return process_group.timeout(run.config.checkpoint.timeout_seconds, usual)


def _weights_broken(run: Run, *, required: bool) -> bool:
    """Return whether an update used non-finite gradients, and report it.

    In this case the weights are not finite and must not be saved.
    """
    if run.learner.guard.protects:
        return False
    # With local SGD the update may be another rank's.
    with run.learner.gate:
        broken = sum_over_ranks(run.learner.totals.read()[2].clone()).item()
    if not broken:
        return False
    sentence = (
        f"checkpoint of step {run.position.step} was not saved, because an earlier update had"
        " gradients that were not finite"
    )
    if required:
        raise NonFiniteError(f"training: {sentence}")
    run.report.warn(sentence)
    return True


def state_of(run: Run) -> SavedState:
    """Return the state of a run between two updates, in the form that a checkpoint contains."""
    learner = run.learner
    return SavedState(
        step=run.position.step,
        samples=run.position.samples,
        seconds=run.seconds(),
        epoch=run.epoch,
        data_size=run.sampler.size,
        order_version=run.sampler.order_version,
        total_steps=run.total_steps,
        world_size=run.ranks.world_size,
        attempt=run.attempt,
        scaler=learner.scaler.state_dict(),
        compression_on=learner.compression is None or learner.compression.switched_on,
        optimizer=type(learner.optimizer).__name__,
        live_buffers=learner.buffers.names if learner.buffers else None,
        nonfinite=run.nonfinite.counts(),
        metrics=_finite(run.metrics) if run.evaluated_step == run.position.step else None,
        task=run.task_path,
        source=run.fingerprints.source,
        data=run.fingerprints.data,
        config=SavedConfig.model_validate(run.config.model_dump(mode="json")),
        versions={"python": platform.python_version(), "torch": str(torch.__version__)},
    )


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if math.isfinite(value)}
