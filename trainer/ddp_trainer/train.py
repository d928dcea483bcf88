"""Training: open the run, loop over updates, close the run. Every start is a resume.

Between two updates, the loop exchanges requests and reports, saves a checkpoint and evaluates, as
far as each is due. All ranks do this in the same order. Whether something is due depends only on
the step, which is equal on all ranks, or on a decision that the exchange made for all ranks. So no
rank waits in a collective that another rank does not join.
"""

import gc
import sys
from collections.abc import Iterator
from contextlib import closing, nullcontext
from typing import TypeVar

from ddp_trainer.data.loader import by_update
from ddp_trainer.data.prefetch import on_device
from ddp_trainer.data.unreadable import UnreadableError
from ddp_trainer.errors import ReportedError
from ddp_trainer.numerics.schedule import lr_factor
from ddp_trainer.observe.heartbeats import HeartbeatWriter
from ddp_trainer.ranks import process_group, timeouts
from ddp_trainer.ranks.agreement import Decision
from ddp_trainer.ranks.collectives import wait_for_all
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.run.evaluating import evaluate_first, evaluate_run
from ddp_trainer.run.exchange import exchange_requests
from ddp_trainer.run.garbage import Collector
from ddp_trainer.run.opening import RunRequest, open_run
from ddp_trainer.run.replicas import check_replicas
from ddp_trainer.run.run import Run
from ddp_trainer.run.saving import finish_mirror, save
from ddp_trainer.run.snapshots import MemorySnapshots
from ddp_trainer.run.survivors import Survivor
from ddp_trainer.run.writing import poll
from ddp_trainer.step import train_step
from ddp_trainer.stop import StopFlag
from ddp_trainer.task import HasAfterUpdate
from ddp_wire.activity import Activity
from ddp_wire.contract import ExitCode

T = TypeVar("T")


def train(
    request: RunRequest, ranks: Ranks, stop: StopFlag, heartbeats: HeartbeatWriter
) -> ExitCode:
    """Train until the run is complete or a stop is requested.

    Args:
        request: The requested run.
        ranks: This process's rank.
        stop: Flag that signal handlers set.
        heartbeats: Writer of this rank's heartbeats.

    Returns:
        OK if the run is complete, PREEMPTED if it stopped on request after saving.

    Raises:
        InputError: On every rank, if the run can never succeed with these settings.
        VolumeError: On every rank, if rank 0 cannot read the volume or write the last checkpoint.
        StalledError: On every rank whose collective timed out because another rank did not join.
    """
    try:
        run = open_run(request, ranks, stop, heartbeats)
        survivor = Survivor(run)
        stop.on_terminate = survivor.leave_if_asked
        try:
            stopped = loop(run, survivor)
            code = close(run, survivor, stopped=stopped)
        except Exception as error:
            survivor.write_after(error)
            raise
    except RuntimeError as error:
        timeouts.raise_if_peer_failed(error, ranks, f"rank {ranks.rank}")
        raise
    heartbeats.done(code)
    # Free DDP's reducer before the process group. If the reducer held the last reference to the
    # group, it would join gloo's threads while holding the interpreter lock. These threads may wait
    # for that lock: a deadlock.
    del run, survivor
    stop.on_terminate = lambda: None
    gc.collect()
    process_group.leave()
    return code


def loop(run: Run, survivor: Survivor | None = None) -> bool:
    """Make updates until the run is complete.

    Args:
        run: The run.
        survivor: Writer of this rank's record, for an update that fails.

    Returns:
        Whether the loop ended early, because a rank received a stop request.
    """
    if run.complete:
        run.report.already_complete(run.position.step)
        return False
    survivor = survivor or Survivor(run)
    decision = exchange_requests(run)
    trace = run.learner.trace
    after_update = run.task.after_update if isinstance(run.task, HasAfterUpdate) else None
    arriving = on_device(run.train_loader, run.learner.device, run.report.times.data_wait)
    arriving = run.learner.gate.during(trace.waits(Activity.DATA, arriving))
    snapshots = MemorySnapshots(run)
    with Collector(run.config.collect_every_steps) as garbage, closing(snapshots):
        for micro_batches in _located(by_update(arriving), run):
            if decision.stop or decision.finish:
                break
            step = run.position.step
            factor = lr_factor(step, run.total_steps, run.config.schedule)
            try:
                survivor.begin_update()
                run.advance(train_step(run.learner, micro_batches, step, factor))
                if after_update is not None:
                    run.call_hook(after_update)
                survivor.end_update()
            except Exception as error:
                survivor.write_after(error)  # First, because the location takes seconds to find.
                _add_location(error, run.ranks, step)
                raise
            garbage.after_update(run.position.step)
            decision = _between_updates(run, decision)
            snapshots.after_update()
            run.report.traced(trace.after_update(run.position.step))
    run.report.traced(trace.end(run.position.step))
    run.stop_clock()
    return decision.stop and not decision.finish and run.position.step < run.total_steps


def close(run: Run, survivor: Survivor | None = None, *, stopped: bool) -> ExitCode:
    """Save a checkpoint, and evaluate if the run is complete. Return after the checkpoint's commit.

    Args:
        run: The run after its loop.
        survivor: Writer of this rank's record, for a run that is not complete.
        stopped: Whether the loop ended early, so that the run is not complete.
    """
    if not stopped:
        evaluate_first(run)
    with survivor.keeping() if stopped and survivor else nullcontext():
        save(run, required=True)
    if stopped:
        run.report.ended("stop", **run.totals(), signal=run.stop.signal_name)
    else:
        evaluate_run(run)
        finish_mirror(run)
        run.report.ended("summary", **run.totals(), metrics=run.metrics)
    run.learner.trace.enter(Activity.ENDING)
    wait_for_all(run.learner.device)
    return ExitCode.PREEMPTED if stopped else ExitCode.OK


def _located(updates: Iterator[T], run: Run) -> Iterator[T]:
    """Yield the same items. Add the rank and the update to an error that reading data raises."""
    try:
        yield from updates
    except Exception as error:
        _add_location(error, run.ranks, run.position.step)
        raise


def _add_location(error: Exception, ranks: Ranks, step: int) -> None:
    """Add the rank and the update to the report of an error.

    Raises:
        ReportedError: A copy of a reported error, with the location in its message.
        UnreadableError: A copy of such an error, with the location in its message.
    """
    where = f"rank {ranks.rank}, update {step + 1}"
    timeouts.raise_if_peer_failed(error, ranks, where)
    if isinstance(error, UnreadableError):
        raise error.at(where) from None
    if not isinstance(error, ReportedError):
        print(f"{where}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    elif ranks.world_size > 1:
        raise type(error)(f"{where}: {error}", rank_specific=True) from error


def _between_updates(run: Run, decision: Decision) -> Decision:
    """Exchange requests, save and evaluate, if each is due.

    Returns:
        The newest decision.
    """
    step = run.position.step
    poll(run)
    if step == run.total_steps:
        return exchange_requests(run)  # `close` saves and evaluates.
    by_clock = False
    if run.agreement.due(step):
        decision = exchange_requests(run)
        by_clock = decision.save
    if run.replicas.due(step):
        check_replicas(run)
    epoch_ended = run.sampler.ends_epoch(run.position.samples)
    every = run.config.eval_every_steps
    evaluates = epoch_ended if every is None else step % every == 0
    best = evaluates and evaluate_first(run)
    if best or run.checkpoints.due(step, epoch_ended=epoch_ended, by_clock=by_clock):
        save(run)
    if evaluates:
        evaluate_run(run)
    return decision
