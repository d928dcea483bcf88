"""Evaluate a run, with its averaged weights if the config enables this.

An evaluation normally follows the checkpoint of the same update, so that its failure loses no work.
With `checkpoint.keep_best` it precedes the checkpoint, which contains the results.
"""

import time
from contextlib import nullcontext

from ddp_trainer.data.evaluation import evaluate
from ddp_trainer.ranks.collectives import on_first_rank
from ddp_trainer.run.run import Run
from ddp_trainer.run.settling import settle
from ddp_wire.activity import Activity


def evaluate_run(run: Run) -> None:
    """Evaluate the model at this step, unless that was already done. Every rank must call this."""
    step, learner = run.position.step, run.learner
    if run.eval_loader is None or run.evaluated_step == step:
        return
    settle(run)
    start = time.monotonic()
    averaged = run.config.ema.evaluate
    # The averaged weights take the place of the others meanwhile.
    gate = nullcontext() if learner.ema and averaged else learner.gate
    learner.trace.enter(Activity.EVALUATION)
    with run.report.apart("evaluation"), gate, learner.evaluated(averaged=averaged):
        run.metrics = evaluate(
            run.task,
            learner.model,
            run.eval_loader,
            device=learner.device,
            autocast=learner.autocast,
            refresh_heartbeat=run.report.heartbeats.refresh,
        )
    run.evaluated_step = step
    run.report.evaluated(
        step=step, epoch=run.epoch, metrics=run.metrics, seconds=time.monotonic() - start
    )


def evaluate_first(run: Run) -> bool:
    """Evaluate before the checkpoint of the same update, if the best one is kept.

    Every rank must call this.

    Returns:
        Whether the result is better than those of all checkpoints; equal on all ranks.
    """
    best = run.config.checkpoint.keep_best
    if best is None or not run.checkpoints.enabled:
        return False
    evaluate_run(run)
    if best not in run.metrics:
        names = ", ".join(run.metrics) or "none"
        run.report.warn_once(
            f'no checkpoint is kept as the best one, because the evaluation has no metric "{best}"'
            f" (checkpoint.keep_best); its metrics are: {names}"
        )
        return False
    found = on_first_rank(lambda: run.checkpoints.is_best(run.metrics), run.learner.device)
    return bool(found)
