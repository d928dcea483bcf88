"""Training progress in the status: its source, its write interval, and the final report."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import ConditionType, ProgressStatus
from ddp_operator.reconcile.progress import render
from ddp_operator.reconcile.world import PROGRESS_INTERVAL
from ddp_wire.messages import CheckpointInfo, Heartbeat, Progress, RankPhase, Straggler
from tests.operator.schema_tools import server_findings
from tests.operator.support import (
    NOW,
    active_job,
    after,
    agent_status,
    all_pods,
    ended,
    failed_status,
    plan_for,
    pod,
    summary,
    to_wire,
    with_status,
)

CHECKPOINT = CheckpointInfo(step=40, path="/checkpoints/digits/step-40", at=NOW.timestamp())


def beat(resumed_from: int | None = None) -> Heartbeat:
    return Heartbeat(
        attempt=1,
        rank=0,
        local_rank=0,
        phase=RankPhase.TRAINING,
        at=NOW.timestamp(),
        resumed_from=resumed_from,
    )


def at_step(step: int, **more: Any) -> Any:
    return agent_status(0, progress=Progress(step=step, total_steps=100), **more)


def shown(step: int, since: datetime = NOW) -> DDPJob:
    """Return a running job whose status shows a step with the time of its report."""
    progress = render(Progress(step=step, total_steps=100), since)
    return with_status(active_job(), progress=progress)


def test_status_shows_numbers_as_integers_and_decimal_strings() -> None:
    progress = Progress(
        step=60,
        total_steps=120,
        epoch=3,
        loss=0.123456,
        samples_per_second=1234.56,
        eta_seconds=42,
        metrics={"accuracy": 0.98765},
    )
    assert render(progress, after(0.5)) == ProgressStatus(
        summary="60/120 (50%)",
        step=60,
        total_steps=120,
        epoch=3,
        loss="0.1235",
        samples_per_second=1235,
        eta_seconds=42,
        metrics={"accuracy": "0.9877"},
        time=NOW,
    )


@pytest.mark.parametrize(
    ("progress", "summary"),
    [
        (Progress(step=7), "7"),
        (Progress(step=7, total_steps=0), "7"),
        (Progress(step=0, total_steps=3), "0/3 (0%)"),
        (Progress(step=2, total_steps=3), "2/3 (66%)"),
        (Progress(step=3, total_steps=3), "3/3 (100%)"),
    ],
    ids=["no total", "total 0", "start", "rounded down", "end"],
)
def test_summary_shows_step_total_and_percent(progress: Progress, summary: str) -> None:
    assert render(progress, NOW).summary == summary


def test_missing_measurements_are_absent() -> None:
    progress = render(Progress(step=1), NOW)
    assert (progress.loss, progress.samples_per_second, progress.metrics) == (None, None, None)


@pytest.mark.parametrize("value", [float("nan"), float("inf")], ids=["nan", "inf"])
def test_non_finite_number_leaves_the_status_valid(value: float) -> None:
    progress = Progress(step=1, loss=value, samples_per_second=value, metrics={"a": value})
    job = with_status(active_job(), progress=render(progress, NOW))
    assert server_findings("status", to_wire(job.status)) == []


def test_too_many_metrics_leave_the_status_valid() -> None:
    metrics = {f"metric-{i:03d}": 0.5 for i in range(100)}
    status = with_status(
        active_job(), progress=render(Progress(step=1, metrics=metrics), NOW)
    ).status
    assert server_findings("status", to_wire(status)) == []
    assert status.progress is not None
    assert len(status.progress.metrics or {}) == 32


def test_too_long_metric_name_is_cut() -> None:
    rendered = render(Progress(step=1, metrics={"m" * 4000: 0.5}), NOW)
    assert [len(name) for name in rendered.metrics or {}] == [128]


def test_too_long_checkpoint_path_leaves_the_status_valid() -> None:
    job = active_job()
    report = agent_status(0, checkpoint=CheckpointInfo(step=1, path="/c/" + "x" * 2000, at=0.0))
    status = plan_for(job, all_pods(job), statuses={0: report}).status
    assert server_findings("status", to_wire(status)) == []


def test_progress_comes_from_node_0() -> None:
    job = active_job()
    other = agent_status(1, progress=Progress(step=99))
    assert plan_for(job, all_pods(job), statuses={1: other}).status.progress is None
    status = plan_for(job, all_pods(job), statuses={0: at_step(5), 1: other}).status
    assert status.progress is not None
    assert status.progress.step == 5


def test_report_of_an_earlier_attempt_does_not_count() -> None:
    job = active_job(attempt=2)
    assert plan_for(job, all_pods(job), statuses={0: at_step(5)}).status.progress is None


@pytest.mark.parametrize(
    ("seconds", "step"),
    [(0, 10), (4.9, 10), (5, 20), (60, 20), (-600, 20)],
    ids=["0 s", "4.9 s", "5 s", "60 s", "clock set back"],
)
def test_progress_is_written_at_most_every_five_seconds(seconds: float, step: int) -> None:
    job = shown(10)
    status = plan_for(job, all_pods(job), now=after(seconds), statuses={0: at_step(20)}).status
    assert PROGRESS_INTERVAL.total_seconds() == 5
    assert status.progress is not None
    assert status.progress.step == step


def test_first_progress_is_written_immediately() -> None:
    job = active_job()
    status = plan_for(job, all_pods(job), statuses={0: at_step(1)}).status
    assert status.progress is not None
    assert status.progress.step == 1


def test_unchanged_progress_is_not_written_again() -> None:
    job = shown(10)
    status = plan_for(job, all_pods(job), now=after(60), statuses={0: at_step(10)}).status
    assert status.progress == job.status.progress


@pytest.mark.parametrize("phase", ["Succeeded", "Failed", "Preempted"])
def test_last_progress_of_an_attempt_is_always_written(phase: str) -> None:
    job = shown(95)
    last = agent_status(
        0, phase=phase, progress=Progress(step=100, total_steps=100), checkpoint=CHECKPOINT
    )
    done = pod(job, 0, phase="Succeeded", ready=False, termination=ended(0, final=last))
    seen = [done, pod(job, 1, phase="Succeeded", ready=False)]
    status = plan_for(job, seen, now=after(0.2)).status
    assert status.progress is not None
    assert status.progress.summary == "100/100 (100%)"
    assert status.last_checkpoint is not None
    assert status.last_checkpoint.step == 40


def test_progress_of_a_failed_attempt_stays_in_the_status_of_the_next() -> None:
    job = shown(10)
    failed = failed_status(0).model_copy(update={"progress": Progress(step=17, total_steps=100)})
    status = plan_for(job, all_pods(job), now=after(1), statuses={0: failed}).status
    assert status.attempt == 2
    assert status.progress is not None
    assert status.progress.step == 17


@pytest.mark.parametrize(
    ("reported", "shown"), [(None, None), (588.4, 588), (1e12, 31_536_000), (0.2, 0)]
)
def test_status_shows_the_interval_of_checkpoints(
    reported: float | None, shown: int | None
) -> None:
    job = active_job()
    saved = CHECKPOINT.model_copy(update={"interval_seconds": reported})
    status = plan_for(job, all_pods(job), statuses={0: at_step(41, checkpoint=saved)}).status
    assert status.last_checkpoint is not None
    assert status.last_checkpoint.interval_seconds == shown


def test_checkpoint_sets_a_condition_and_a_path() -> None:
    job = active_job()
    status = plan_for(job, all_pods(job), statuses={0: at_step(41, checkpoint=CHECKPOINT)}).status
    assert status.last_checkpoint is not None
    assert status.last_checkpoint.path == "/checkpoints/digits/step-40"
    assert status.last_checkpoint.time == datetime.fromtimestamp(CHECKPOINT.at, UTC)
    found = status.condition(ConditionType.CHECKPOINTED)
    assert found is not None
    assert found.message == "the newest checkpoint is at step 40"


def test_resumed_step_is_written_and_emitted_immediately() -> None:
    job = shown(10)
    report = at_step(10, ranks=[beat(resumed_from=8)])
    plan = plan_for(job, all_pods(job), now=after(1), statuses={0: report})
    assert plan.status.resumed_from_step == 8
    assert ("ResumedFromCheckpoint", "attempt 1 resumed from step 8") in [
        (e.reason, e.message) for e in plan.events
    ]
    again = with_status(job, **dict(plan.status))
    assert plan_for(again, all_pods(again), now=after(2), statuses={0: report}).events == ()


def test_new_attempt_has_no_resumed_step_until_it_reports_one() -> None:
    job = with_status(active_job(), resumed_from_step=8)
    plan = plan_for(job, all_pods(job), statuses={1: failed_status(1)})
    assert (plan.status.attempt, plan.status.resumed_from_step) == (2, None)
    fresh = active_job()
    plan = plan_for(fresh, all_pods(fresh), statuses={0: agent_status(0, ranks=[beat(None)])})
    assert plan.status.resumed_from_step is None
    assert plan.events == ()


@pytest.mark.parametrize("later", [None, 9])
def test_attempt_resumes_once_even_if_its_rank_reports_another_step_later(
    later: int | None,
) -> None:
    job = with_status(shown(10), resumed_from_step=8)
    report = at_step(10, ranks=[beat(resumed_from=later)])
    plan = plan_for(job, all_pods(job), now=after(1), statuses={0: report})
    assert plan.status.resumed_from_step == 8
    assert plan.events == ()


def test_first_checkpoint_is_written_at_once_and_progress_after_the_fleets_interval() -> None:
    job, minute = shown(10), timedelta(seconds=60)
    report = at_step(11)
    for seconds, step in ((59, 10), (60, 11)):
        status = plan_for(
            job, all_pods(job), now=after(seconds), statuses={0: report}, progress_interval=minute
        ).status
        assert status.progress is not None
        assert status.progress.step == step
    saved = report.model_copy(update={"checkpoint": CHECKPOINT})
    status = plan_for(
        job, all_pods(job), now=after(1), statuses={0: saved}, progress_interval=minute
    ).status
    assert status.last_checkpoint is not None
    assert status.last_checkpoint.step == CHECKPOINT.step


def test_early_progress_is_written_when_its_interval_ends() -> None:
    job = shown(10)
    early = plan_for(job, all_pods(job), now=after(4.8), statuses={0: at_step(11)})
    assert early.status.progress is not None
    assert early.status.progress.step == 10
    assert early.requeue_seconds == pytest.approx(0.2)
    due = plan_for(job, all_pods(job), now=after(5), statuses={0: at_step(11)})
    assert due.status.progress is not None
    assert due.status.progress.step == 11
    assert due.requeue_seconds is not None
    assert due.requeue_seconds > 1


def slow(rank: int, ratio: float = 1.44) -> Any:
    straggler = Straggler(rank=rank, ratio=ratio, part="data")
    return agent_status(0, progress=Progress(step=9, total_steps=100, straggler=straggler))


def test_straggler_is_named_with_its_pod_and_kubernetes_node_once() -> None:
    job = active_job(procsPerNode=2)
    plan = plan_for(job, all_pods(job), statuses={0: slow(3)})
    found = plan.status.straggler
    assert found is not None
    assert (found.rank, found.pod, found.node) == (3, "digits-1", "machine-1")
    (event,) = [one for one in plan.events if one.reason == "Straggler"]
    assert event.message == (
        "rank 3 on digits-1 (machine-1) needs 1.4 times as long as the others for its data, and all"
        " other ranks wait for it"
    )
    assert summary(plan.status)[2].endswith(f"; {event.message}")
    again = with_status(job, **dict(plan.status))
    later = plan_for(again, all_pods(again), statuses={0: slow(3, 1.6)}, now=after(60))
    assert later.status.straggler is not None
    assert later.status.straggler.ratio == "1.6"
    assert not [one for one in later.events if one.reason == "Straggler"]


def test_straggler_is_shown_and_removed_without_delay() -> None:
    job = with_status(active_job(), progress=render(Progress(step=8, total_steps=100), NOW))
    plan = plan_for(job, all_pods(job), statuses={0: slow(1)}, now=after(1))
    assert plan.status.straggler is not None
    job = with_status(job, **dict(plan.status))
    plan = plan_for(job, all_pods(job), statuses={0: at_step(10)}, now=after(2))
    assert plan.status.straggler is None


def test_straggler_with_an_unknown_rank_is_ignored() -> None:
    job = active_job()
    for rank in (2, 10**12, -5):
        assert plan_for(job, all_pods(job), statuses={0: slow(rank)}).status.straggler is None


def test_new_attempt_starts_without_a_straggler() -> None:
    job = active_job()
    plan = plan_for(job, all_pods(job), statuses={0: slow(1)})
    job = with_status(job, **dict(plan.status))
    assert plan_for(job, all_pods(job), statuses={1: failed_status(1)}).status.straggler is None
