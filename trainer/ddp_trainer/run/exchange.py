"""Exchange requests between updates: all ranks decide together, then report progress.

Every few seconds each rank contributes its requests and measurements to one reduction
(`ranks.agreement`), so that all ranks come to the same decision at the same update. All ranks act
on the decision in the same way: warnings, a rollback, the start of compression.
"""

from collections.abc import Mapping
from dataclasses import replace

from ddp_trainer.observe import stragglers
from ddp_trainer.parallel.ddp_times import newest_times
from ddp_trainer.ranks.agreement import NOT_MEASURED, Decision, RankSeconds, Requests
from ddp_trainer.run.run import Run
from ddp_trainer.run.saving import roll_back
from ddp_wire.activity import Activity


def exchange_requests(run: Run) -> Decision:
    """Decide together with the other ranks, and report if due. Every rank must call this."""
    step, learner = run.position.step, run.learner
    learner.trace.enter(Activity.EXCHANGE)
    due = step % run.config.log.every_steps == 0 or step == run.total_steps
    phase_seconds = learner.trace.seconds()
    own = _own_seconds(run, phase_seconds)
    requests = _requests(run, replace(own, step=run.report.times.mean_update()) if due else own)
    totals, parts = learner.totals.read(), learner.parts.read()
    with learner.gate:
        decision = run.agreement.exchange(step, totals, requests, parts)
    _warn(run, decision)
    # Right after a resume there is no training loss to report yet.
    if due and (decision.loss_count or decision.nonfinite):
        _react(run, decision)
        learner.totals.clear()
        _report(run, decision, phase_seconds)
    learner.trace.poll_request(run.report.warn)
    return decision


def _requests(run: Run, rank_seconds: RankSeconds) -> Requests:
    """Return this rank's requests and measurements for the exchange."""
    first, compression = run.ranks.is_first, run.learner.compression
    return Requests(
        stop=run.stop.requested,
        finish=first and run.time_limit_reached(run.seconds()),
        save=first and run.checkpoints.interval_passed(),
        communication_wait=compression.share() if compression else 0.0,
        starvation=run.data_wait_monitor.own_starvation(),
        rank_seconds=rank_seconds,
    )


def _own_seconds(run: Run, phase_seconds: Mapping[str, float]) -> RankSeconds:
    """Return this rank's own time in a typical update, by the clock of its device."""
    own = run.work.read()
    if run.learner.device.type != "cuda" or own is NOT_MEASURED:
        return own
    names = ("data", "forward")
    return RankSeconds(own.step, *(phase_seconds.get(name, 0.0) for name in names))


def _warn(run: Run, decision: Decision) -> None:
    """Warn about waits for data and about slow ranks."""
    starvation = run.data_wait_monitor.assess(decision.starvation, decision.seconds)
    if starvation:
        run.report.warn(starvation)
    straggler = run.stragglers.assess(decision.rank_seconds)
    if straggler is not None:
        run.report.warn(stragglers.sentence(straggler))
    run.report.straggler = run.stragglers.found


def _react(run: Run, decision: Decision) -> None:
    """React to non-finite gradients and to slow communication, in the same way on all ranks."""
    step, learner = run.position.step, run.learner
    warning = run.nonfinite.assess(step, decision.nonfinite, step - run.reported_step)
    run.reported_step = step
    if warning:
        run.report.warn(warning)
        if learner.guard.policy == "rollback":
            roll_back(run)
    if learner.compression:
        switched_on = learner.compression.consider(step, decision.communication_wait)
        if switched_on:
            run.report.note(switched_on)


def _report(run: Run, decision: Decision, phase_seconds: dict[str, float]) -> None:
    """Report the progress since the last report."""
    learner = run.learner
    run.report.unwritten_seconds = run.background.unwritten_seconds()
    run.report.trained(
        step=run.position.step,
        epoch=run.epoch,
        loss=decision.loss,
        loss_parts=learner.parts.means(decision.parts, decision.loss_count, run.ranks.world_size),
        lr=learner.optimizer.param_groups[0]["lr"],
        grad_norm=None if learner.grad_norm is None else learner.grad_norm.item(),
        allreduce=_allreduce(run),
        seconds_left=run.seconds_left(run.seconds()),
        phase_seconds=phase_seconds,
        rank_seconds=decision.rank_seconds,
        mirror=_mirror(run),
    )


def _mirror(run: Run) -> tuple[int | None, float] | None:
    """Return the step of the newest copy in the mirror, and how many seconds it is behind."""
    mirror = run.checkpoints.mirror
    if mirror is None:
        return None
    if warning := mirror.warning():
        run.report.warn(warning)
    return mirror.lag()


def _allreduce(run: Run) -> tuple[float, float] | None:
    """Return the seconds of the newest measured all-reduce, and of its overlap with computation."""
    found = newest_times(run.learner.objective)
    return (found.reduction, found.overlap) if found else None
