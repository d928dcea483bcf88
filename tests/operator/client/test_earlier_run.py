"""Tests that a local run continues the previous run in its folder: attempt numbers and ledger."""

import json
from pathlib import Path
from typing import Any

import pytest

from ddp_operator.api.goodput import Bucket, CountedStatus, GoodputStatus
from ddp_operator.api.job import DDPJob, parse_job
from ddp_operator.api.status import (
    AttemptStatus,
    CheckpointStatus,
    ConditionType,
    DDPJobStatus,
    ProgressStatus,
)
from ddp_operator.cli.endings import interrupt_sentence, stop_sentence
from ddp_operator.client.earlier_run import (
    KILLED,
    finished_before,
    first_state,
    run_directory,
    stopped,
)
from ddp_operator.client.run_folder import EarlierRun
from ddp_operator.cluster.base import Manifest
from ddp_operator.reconcile.decide import decide
from ddp_operator.reconcile.world import World
from ddp_wire.messages import AgentPhase, CheckpointInfo
from tests.operator.support import (
    DEFAULTS,
    NOW,
    active_job,
    after,
    agent_status,
    condition,
    job_manifest,
    new_job,
    with_status,
)

CHECKPOINT = {"claimName": "shared"}


def document(job: DDPJob) -> Manifest:
    """Return the job as `ddpjob run` writes it."""
    manifest = job_manifest(nodes=2, checkpoint=CHECKPOINT)
    status = job.status.model_dump(mode="json", by_alias=True, exclude_none=True)
    stored: Manifest = json.loads(json.dumps({**manifest, "status": status}))
    return stored


def training_job(**status: Any) -> DDPJob:
    ledger = GoodputStatus(
        queued_milliseconds=1000,
        starting_milliseconds=4000,
        training_milliseconds=20_000,
        counted=CountedStatus(step=50),
    )
    given = {"goodput": ledger, "last_checkpoint": saved(40), "attempt_start_step": 0} | status
    return active_job(checkpoint=CHECKPOINT, status=given)


def saved(step: int) -> CheckpointStatus:
    return CheckpointStatus(step=step, path=f"/c/step-{step}", time=NOW)


def next_state(job: DDPJob, home: Path, seconds: float = 30, **spec: Any) -> DDPJob:
    """Return the job with which the next run begins."""
    fields: dict[str, Any] = {"nodes": 2, "checkpoint": CHECKPOINT} | spec
    wanted = job_manifest(**fields)
    earlier = EarlierRun(document(job), after(seconds))
    return parse_job(first_state(wanted, earlier, home))


def with_run_directory(home: Path) -> Path:
    directory = run_directory(new_job(checkpoint=CHECKPOINT), home)
    assert directory is not None
    directory.mkdir(parents=True)
    return home


def total(ledger: GoodputStatus | None) -> int:
    assert ledger is not None
    return sum(ledger.milliseconds(bucket) for bucket in Bucket)


def test_resume_of_a_killed_local_run_continues_its_goodput_ledger(tmp_path: Path) -> None:
    begun = next_state(training_job(), with_run_directory(tmp_path))
    ended = begun.status.attempts[-1]
    assert (ended.number, ended.reason, ended.message, ended.end_step) == (
        1,
        "Suspended",
        KILLED,
        40,
    )
    assert begun.metadata.creation_timestamp == NOW
    plan = decide(World(begun, after(100)), DEFAULTS)
    assert plan.status.attempt == 2
    assert plan.status.attempt_start_step == 40
    ledger = plan.status.goodput
    assert total(ledger) == 100_000
    assert ledger is not None
    assert (ledger.suspended_milliseconds, ledger.recovering_milliseconds) == (70_000, 0)
    starting = begun.model_copy(update={"status": plan.status})
    # The operator counts the time when it writes the status.
    started = decide(World(with_status(starting, ready="1/2"), after(110)), DEFAULTS).status
    assert started.goodput is not None
    assert started.goodput.recovering_milliseconds == 0


def test_resume_of_a_completed_local_run_does_not_count_as_a_recovery(tmp_path: Path) -> None:
    """Only the config has changed in between: the new run may train for more epochs."""
    end = AttemptStatus(number=1, end_time=after(25), reason="Completed")
    completed = training_job(
        attempts=[end],
        completion_time=after(25),
        conditions=[condition(ConditionType.SUCCEEDED, "True", "Completed")],
    )
    begun = next_state(completed, with_run_directory(tmp_path))
    plan = decide(World(begun, after(100)), DEFAULTS)
    starting = begun.model_copy(update={"status": plan.status})
    ledger = decide(World(with_status(starting, ready="1/2"), after(110)), DEFAULTS).status.goodput
    assert ledger is not None
    assert (total(ledger), ledger.recovering_milliseconds) == (110_000, 0)


def test_message_about_a_stopped_run_names_its_last_saved_update() -> None:
    job = training_job()
    newest = CheckpointInfo(step=61, path="/c/step-61", at=after(29).timestamp())
    final = agent_status(phase=AgentPhase.PREEMPTED, checkpoint=newest)
    terminated = {"exitCode": 0, "finishedAt": after(30).isoformat(), "message": final.to_json()}
    pod = {
        "metadata": {
            "name": "digits-0",
            "uid": "u",
            "labels": {"ddp-trainer.dev/node-index": "0"},
            "annotations": {"ddp-trainer.dev/attempt": "1"},
        },
        "status": {
            "phase": "Succeeded",
            "containerStatuses": [{"name": "worker", "state": {"terminated": terminated}}],
        },
    }
    status = stopped(document(job), after(30), "the user stopped the run", [pod])
    assert status.last_checkpoint is not None
    assert (status.last_checkpoint.step, status.attempts[-1].end_step) == (61, 61)
    assert status.is_true(ConditionType.SUSPENDED)
    summary = status.condition(ConditionType.SUCCEEDED)
    assert summary is not None
    assert summary.message == "the user stopped the run; run the same command again to resume"


def test_run_after_a_failure_has_full_budgets_and_keeps_the_ledger(tmp_path: Path) -> None:
    end = AttemptStatus(number=4, end_time=NOW, reason="RankFailed")
    failed = training_job(
        attempt=4,
        restarts=3,
        attempts=[end],
        completion_time=after(25),
        conditions=[condition(ConditionType.SUCCEEDED, "False", "Failed")],
    )
    begun = next_state(failed, with_run_directory(tmp_path))
    assert (begun.status.attempt, begun.status.restarts) == (4, 0)
    plan = decide(World(begun, after(100)), DEFAULTS)
    assert (plan.status.attempt, total(plan.status.goodput)) == (5, 100_000)
    assert plan.status.goodput is not None
    assert plan.status.goodput.suspended_milliseconds == 75_000


@pytest.mark.parametrize("kept", [True, False], ids=["no checkpoint section", "no directory"])
def test_run_without_checkpoints_begins_a_new_goodput_ledger(tmp_path: Path, kept: bool) -> None:
    home = with_run_directory(tmp_path) if kept else tmp_path
    begun = next_state(training_job(), home, checkpoint=None if kept else CHECKPOINT)
    assert begun.status == DDPJobStatus(attempt=1)
    assert begun.metadata.creation_timestamp is None


def test_damaged_state_or_state_of_another_job_is_not_continued(tmp_path: Path) -> None:
    wanted = job_manifest(nodes=2)
    foreign = document(training_job())
    foreign["metadata"]["uid"] = "another"
    damaged: list[Manifest] = [{}, {"metadata": []}, {"spec": 1}, foreign]
    for manifest in damaged:
        begun = first_state(wanted, EarlierRun(manifest, NOW), tmp_path)
        assert begun["status"] == {}


def completed_job(path: Path, step: int = 120, total_steps: int = 120) -> DDPJob:
    return training_job(
        last_checkpoint=CheckpointStatus(step=step, path=str(path), time=NOW),
        progress=ProgressStatus(step=step, total_steps=total_steps),
        conditions=[condition(ConditionType.SUCCEEDED, "True", "Completed")],
    )


def test_finished_run_of_the_same_spec_is_recognized(tmp_path: Path) -> None:
    same = job_manifest(nodes=2, checkpoint=CHECKPOINT)
    earlier = EarlierRun(document(completed_job(tmp_path)), NOW)
    assert finished_before(same, earlier) is not None
    other = job_manifest(nodes=2, checkpoint=CHECKPOINT, config={"epochs": 40})
    assert finished_before(other, earlier) is None
    for unfinished in (completed_job(tmp_path / "gone"), completed_job(tmp_path, 60), new_job()):
        assert finished_before(same, EarlierRun(document(unfinished), NOW)) is None
    assert finished_before(same, None) is None


SENTENCES = {
    "saved": (saved(560), False, "Stopped: update 560 is saved. "),
    "second Ctrl-C": (saved(540), True, "Stopped at once: nothing was saved since update 540. "),
    "save failed": (
        saved(540),
        False,
        "Stopped. The newest checkpoint is of update 540, and the run had reached update 550. ",
    ),
    "never saved": (None, True, "Stopped at once: nothing was saved. "),
}


@pytest.mark.parametrize(("checkpoint", "at_once", "sentence"), SENTENCES.values(), ids=SENTENCES)
def test_message_about_a_stopped_run_says_what_is_saved_and_how_to_resume(
    checkpoint: CheckpointStatus | None, at_once: bool, sentence: str
) -> None:
    job = new_job(checkpoint=CHECKPOINT)
    status = DDPJobStatus(last_checkpoint=checkpoint, progress=ProgressStatus(step=550))
    where = "train from the beginning" if checkpoint is None else "resume there"
    expected = f"{sentence}Run the same command again to {where}."
    assert stop_sentence(job, status, at_once=at_once) == expected


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("checkpoint", [None, CHECKPOINT], ids=["no section", "nothing reported"])
def test_message_about_a_stopped_command_promises_no_resumption(
    checkpoint: dict[str, Any] | None, at_once: bool
) -> None:
    job = new_job(command=["python", "a.py"], checkpoint=checkpoint)
    stopped = "Stopped at once: nothing was saved." if at_once else "Stopped."
    expected = f"{stopped} Run the same command again to start the program again."
    assert stop_sentence(job, DDPJobStatus(), at_once=at_once) == expected
    reported = stop_sentence(job, DDPJobStatus(last_checkpoint=saved(40)), at_once=at_once)
    assert reported.endswith("Run the same command again to resume there.")


def test_message_about_an_interrupt_promises_a_checkpoint_only_with_spec_checkpoint() -> None:
    saves = interrupt_sentence(new_job(checkpoint=CHECKPOINT))
    assert saves.startswith("Interrupted: saving a checkpoint (press Ctrl-C again")
    assert "without a checkpoint" in interrupt_sentence(new_job())
    script = new_job(command=["python", "a.py"], checkpoint=CHECKPOINT)
    assert "the program gets SIGTERM and may save" in interrupt_sentence(script)
