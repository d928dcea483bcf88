"""Evaluate a run, with its averaged weights if the config enables this."""

import time
from contextlib import nullcontext

from ddp_trainer.data.evaluation import evaluate
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
