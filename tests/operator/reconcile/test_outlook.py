"""What the operator says it does next, or waits for."""

from collections.abc import Iterable
from typing import Any

import pytest

from ddp_operator.reconcile.world import PodView
from tests.operator.support import (
    active_job,
    all_pods,
    ended,
    failed_word,
    finished_job,
    last_failure,
    new_job,
    plan_for,
    pod,
    with_status,
    word,
)

SAVES: dict[str, Any] = {"checkpoint": {"claimName": "shared"}}
STARTING = active_job(attempt=2, formed=False)
RUNNING = active_job()


def said(job: Any, pods: Iterable[PodView] = (), **seen: Any) -> str:
    told = plan_for(job, pods, **seen).status.next_action
    assert told is not None
    return told


def test_the_first_pods() -> None:
    assert said(new_job(nodes=2)) == "creates digits-0, digits-1"
    assert said(new_job(nodes=9)) == "creates digits-0, digits-1, digits-2 and 6 more"


STARTS: dict[str, tuple[dict[str, Any], str]] = {
    "told in place": ({"attempt": "1"}, "attempt 2 starts in place"),
    "told": ({}, "waits until all ranks of attempt 2 train"),
    "ends": ({"deleting": True}, "recreates digits-1"),
    "ended in the attempt before": ({"attempt": "1", "phase": "Failed"}, "recreates digits-1"),
    "of another spec": ({"spec_hash": "old"}, "recreates digits-1"),
}


@pytest.mark.parametrize(("fields", "sentence"), STARTS.values(), ids=STARTS.keys())
def test_of_an_attempt_that_starts(fields: dict[str, Any], sentence: str) -> None:
    assert said(STARTING, [pod(STARTING, 0), pod(STARTING, 1, **fields)]) == sentence


def test_a_missing_pod() -> None:
    assert said(STARTING, [pod(STARTING, 0)]) == "recreates digits-1"


def test_what_the_api_server_refused() -> None:
    seen = said(STARTING, [pod(STARTING, 0)], blocked="exceeded quota")
    assert seen == "tries again what the API server refused"


def test_of_a_fallen_rank() -> None:
    pods, words = all_pods(RUNNING), {1: failed_word(1)}
    assert said(RUNNING, pods, words=words) == "attempt 2 starts in place"
    stalls = active_job(**SAVES)
    assert said(stalls, all_pods(stalls), words=words) == "recreates digits-1"


RUNS: dict[str, tuple[dict[str, Any], str]] = {
    "all train": ({}, "nothing: all ranks train"),
    "one is done": ({"phase": "Succeeded", "ready": False}, "waits for digits-0 to end"),
    "one says nothing": ({"ready": False}, "waits for word of digits-1"),
}


@pytest.mark.parametrize(("fields", "sentence"), RUNS.values(), ids=RUNS.keys())
def test_of_a_run_that_trains(fields: dict[str, Any], sentence: str) -> None:
    assert said(RUNNING, [pod(RUNNING, 0), pod(RUNNING, 1, **fields)]) == sentence


def test_of_a_suspended_job() -> None:
    job = active_job(suspend=True)
    assert said(job, [pod(job, 1)]) == "waits for digits-1 to end"
    assert said(job) == "nothing: waits until spec.suspend is false"


FINISHED: dict[str, tuple[bool, dict[str, Any], dict[str, Any], str]] = {
    "completed": (True, {}, {"phase": "Succeeded"}, "nothing: finished"),
    "failed": (False, {}, {"phase": "Failed"}, "nothing: finished"),
    "failed, pods end": (False, {}, {}, "waits for digits-0 to end"),
    "pods are not kept": (
        True,
        {"cleanPodPolicy": "All"},
        {"phase": "Succeeded"},
        "deletes digits-0",
    ),
    "the job is not kept": (
        True,
        {"ttlSecondsAfterFinished": 9},
        {"phase": "Succeeded"},
        "deletes the job 9 s after its end",
    ),
}


@pytest.mark.parametrize(
    ("succeeded", "spec", "fields", "sentence"), FINISHED.values(), ids=FINISHED.keys()
)
def test_of_a_finished_job(
    succeeded: bool, spec: dict[str, Any], fields: dict[str, Any], sentence: str
) -> None:
    job = finished_job(succeeded=succeeded, **spec)
    assert said(job, [pod(job, 0, **fields)]) == sentence


def test_the_sentence_is_no_reason_to_write_while_nothing_happens() -> None:
    """Through a whole start it changes only when the rest of the status does."""
    status = {"stalled_attempts": 1, "last_failure": last_failure(1, pod="digits-1")}
    job = active_job(attempt=2, formed=False, status=status, **SAVES)
    before = [pod(job, 0, attempt="1"), pod(job, 1, attempt="1")]
    young = pod(job, 1, phase="Pending", ready=False)
    looks: list[list[PodView]] = [
        before,
        [pod(job, 0, ready=False), pod(job, 1, attempt="1", deleting=True)],
        [pod(job, 0, ready=False)],
        [pod(job, 0, ready=False), young],
        [pod(job, 0, ready=False), pod(job, 1, ready=False)],
        list(all_pods(job)),
    ]
    words = {i: word(i, attempt=2) for i in range(2)}
    sentences = []
    for look in [look for look in looks for _ in range(2)]:
        old, new = job.status, plan_for(job, look, words=words).status
        silent = new.model_copy(update={"next_action": old.next_action})
        assert new == old or silent != old
        job = with_status(job, **dict(new))
        sentences.append(new.next_action)
    assert list(dict.fromkeys(sentences)) == [
        "recreates digits-1",
        "waits until all ranks of attempt 2 train",
        "nothing: all ranks train",
    ]


def test_a_dead_pod_of_a_run_that_fails() -> None:
    job = active_job(maxRestarts=0)
    dead = pod(job, 1, phase="Failed", ready=False, termination=ended(1))
    assert said(job, [pod(job, 0), dead]) == "waits for digits-0 to end"
