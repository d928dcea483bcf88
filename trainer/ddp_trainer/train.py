"""The run: open, loop, close. Every start is a resume."""

import gc
import sys

from ddp_trainer.data.loader import by_update
from ddp_trainer.data.prefetch import on_device
from ddp_trainer.errors import Refusal
from ddp_trainer.numerics.schedule import lr_factor
from ddp_trainer.observe.beats import BeatWriter
from ddp_trainer.ranks import process_group, timeouts
from ddp_trainer.ranks.agreement import Verdict
from ddp_trainer.ranks.collectives import wait_for_all
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.run.garbage import Collector
from ddp_trainer.run.opening import Order, open_run
from ddp_trainer.run.run import Run
from ddp_trainer.step import train_step
from ddp_trainer.stop import StopFlag
from ddp_wire.contract import ExitCode, RankPhase


def train(order: Order, ranks: Ranks, stop: StopFlag, beats: BeatWriter) -> ExitCode:
    """Trains until the run is complete or asked to stop.

    Args:
        order: What to train.
        ranks: This process's place.
        stop: Raised by signals.
        beats: Where this rank shows that it lives.

    Returns:
        OK when the run is complete, PREEMPTED when it stopped on request after saving.

    Raises:
        InputError: On every rank, if the run can never succeed as it was asked for.
        StalledError: On every rank that waited for another one until its time was up.
    """
    try:
        run = open_run(order, ranks, stop, beats)
        stopped = loop(run)
        code = close(run, stopped=stopped)
    except RuntimeError as error:
        timeouts.explain(error, ranks, f"rank {ranks.rank}")
        raise
    beats.phase(RankPhase.DONE)
    # DDP's reducer must go before the group. If it held the last reference to it, it would join the
    # threads of gloo with the interpreter lock held, while they may wait for that lock: a deadlock.
    del run
    gc.collect()
    process_group.leave()
    return code


def loop(run: Run) -> bool:
    """Makes updates until the run is complete.

    Returns:
        Whether it ended before, because a rank was asked to stop.
    """
    if run.complete:
        run.report.nothing_left(run.position.step)
        return False
    verdict = run.meet()
    trace = run.learner.trace
    arriving = on_device(run.train_loader, run.learner.device, run.report.data_wait)
    arriving = trace.ranges("data", arriving)
    with Collector(run.config.collect_every_steps) as garbage:
        for micros in by_update(arriving):
            if verdict.stop or verdict.finish:
                break
            step = run.position.step
            factor = lr_factor(step, run.total_steps, run.config.schedule)
            try:
                samples = train_step(run.learner, micros, step, factor)
            except Exception as error:
                _tell_place(error, run.ranks, step)
                raise
            run.advance(samples)
            garbage.updated(run.position.step)
            verdict = _between_updates(run, verdict)
            run.report.traced(trace.updated(run.position.step))
    run.report.traced(trace.end(run.position.step))
    run.settle()
    return verdict.stop and not verdict.finish and run.position.step < run.total_steps


def close(run: Run, *, stopped: bool) -> ExitCode:
    """Saves, and evaluates a complete run. No rank returns before the checkpoint is committed.

    Args:
        run: After its loop.
        stopped: Whether the run is not complete.
    """
    run.save(required=True)
    if stopped:
        run.report.ended("stop", **run.totals(), signal=run.stop.signal_name)
    else:
        run.evaluate()
        run.report.ended("summary", **run.totals(), metrics=run.metrics)
    wait_for_all(run.learner.device)
    return ExitCode.PREEMPTED if stopped else ExitCode.OK


def _tell_place(error: Exception, ranks: Ranks, step: int) -> None:
    """Says on which rank and in which update it was that something failed.

    Raises:
        Refusal: With the place in its sentence, in place of one that only this rank may know of.
    """
    where = f"rank {ranks.rank}, update {step + 1}"
    timeouts.explain(error, ranks, where)
    if not isinstance(error, Refusal):
        print(f"{where}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    elif ranks.world_size > 1:
        raise type(error)(f"{where}: {error}", own=True) from error


def _between_updates(run: Run, verdict: Verdict) -> Verdict:
    """Meets, saves and evaluates where that is due.

    Returns:
        The newest verdict.
    """
    step = run.position.step
    if step == run.total_steps:
        return run.meet()  # the last checkpoint and evaluation come when the run closes
    by_clock = False
    if run.agreement.due(step):
        verdict = run.meet()
        by_clock = verdict.save
    epoch_ended = run.sampler.ends_epoch(run.position.samples)
    if run.checkpoints.due(step, epoch_ended=epoch_ended, by_clock=by_clock):
        run.save()
    every = run.config.eval_every_steps
    if epoch_ended if every is None else step % every == 0:
        run.evaluate()
    return verdict
