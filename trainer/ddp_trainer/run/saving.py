"""Save checkpoints of an open run, and roll back to the newest checkpoint.

`run.writing` writes what is saved here.
"""

import math
import platform
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager

import torch

from ddp_trainer.checkpoint import records
from ddp_trainer.numerics.guard import NonFiniteError
from ddp_trainer.ranks import process_group
from ddp_trainer.ranks.collectives import (
    errors_of_first_rank,
    on_first_rank,
    sum_over_ranks,
)
from ddp_trainer.run.run import Run
from ddp_trainer.run.settling import settle
from ddp_trainer.run.state import restore
from ddp_trainer.run.writing import wait_until_out, write
from ddp_trainer.saved_state import SavedConfig, SavedState
from ddp_wire.activity import Activity


def save(run: Run, *, required: bool = False) -> None:
    """Save a checkpoint of this step, unless one exists. Every rank must call this.

    A large checkpoint is written in the background, unless it is required. Otherwise all ranks wait
    until it is written. This wait has its own limit, because it may take longer than the timeout of
    a collective.

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
        write(run, state_of(run), time.monotonic(), required=required)


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
    # A read from a slow volume may take much longer than an exchange.
    run.learner.trace.enter(Activity.CHECKPOINT)
    if run.records is not None and run.ranks.local_rank == 0:
        records.clear(run.records)  # The state in it led to the rollback.
    with _volume_timeout(run):
        wait_until_out(run, required=True)
        for sentence in on_first_rank(run.checkpoints.check_newest, device):
            run.report.warn(sentence)
        if not on_first_rank(lambda: run.checkpoints.newest is not None, device):
            raise NonFiniteError(
                "training: gradients were not finite, and there is no checkpoint yet to roll back"
                " to"
            )
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
