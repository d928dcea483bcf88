"""The sentence in `status.nextAction`: what the operator does next, or waits for."""

from collections.abc import Iterable
from typing import Any

import pytest

from ddp_operator.reconcile.pod_view import PodView
from tests.operator.support import (
    active_job,
    agent_status,
    all_pods,
    ended,
    failed_status,
    finished_job,
    last_failure,
    new_job,
    plan_for,
    pod,
    with_status,
)

SAVES: dict[str, Any] = {"checkpoint": {"claimName": "shared"}}
STARTING = active_job(attempt=2, formed=False)
RUNNING = active_job()


def sentence_for(job: Any, pods: Iterable[PodView] = (), **seen: Any) -> str:
    found = plan_for(job, pods, **seen).status.next_action
    assert found is not None
    return found


def test_next_action_names_the_first_pods() -> None:
    assert sentence_for(new_job(nodes=2)) == "the operator creates digits-0, digits-1"
    assert (
        sentence_for(new_job(nodes=9))
        == "the operator creates digits-0, digits-1, digits-2 and 6 more"
    )


STARTS: dict[str, tuple[dict[str, Any], str]] = {
    "pod of attempt 1": (
        {"attempt": "1"},
        "the operator restarts the ranks in place for attempt 2",
    ),
    "pod of attempt 2": ({}, "the operator waits until all ranks of attempt 2 are training"),
    "pod being deleted": ({"deleting": True}, "the operator recreates digits-1"),
    "pod that ended in attempt 1": (
        {"attempt": "1", "phase": "Failed"},
        "the operator recreates digits-1",
    ),
    "pod of another spec": ({"spec_hash": "old"}, "the operator recreates digits-1"),
}


@pytest.mark.parametrize(("fields", "sentence"), STARTS.values(), ids=STARTS.keys())
def test_next_action_of_a_starting_attempt_depends_on_its_pods(
    fields: dict[str, Any], sentence: str
) -> None:
    fields = {"ready": False} | fields
    assert sentence_for(STARTING, [pod(STARTING, 0), pod(STARTING, 1, **fields)]) == sentence


def test_next_action_recreates_a_missing_pod() -> None:
    assert sentence_for(STARTING, [pod(STARTING, 0)]) == "the operator recreates digits-1"


def test_next_action_retries_a_refused_request() -> None:
    sentence = sentence_for(STARTING, [pod(STARTING, 0)], blocked="exceeded quota")
    assert sentence == "the operator retries the request that the API server refused"


def test_next_action_after_a_failed_rank_is_a_restart_in_place() -> None:
    pods, statuses = all_pods(RUNNING), {1: failed_status(1)}
    assert (
        sentence_for(RUNNING, pods, statuses=statuses)
        == "the operator restarts the ranks in place for attempt 2"
    )
    stalls = active_job(**SAVES)
    assert (
        sentence_for(stalls, all_pods(stalls), statuses=statuses)
        == "the operator recreates digits-1"
    )


RUNS: dict[str, tuple[dict[str, Any], str]] = {
    "all ranks train": ({}, "none: all ranks are training"),
    "one pod succeeded": (
        {"phase": "Succeeded", "ready": False},
        "the operator waits for digits-0 to end",
    ),
    "one pod not ready": ({"ready": False}, "the operator waits for digits-1 to become ready"),
}


@pytest.mark.parametrize(("fields", "sentence"), RUNS.values(), ids=RUNS.keys())
def test_next_action_of_a_training_attempt_depends_on_its_pods(
    fields: dict[str, Any], sentence: str
) -> None:
    assert sentence_for(RUNNING, [pod(RUNNING, 0), pod(RUNNING, 1, **fields)]) == sentence


def test_next_action_of_a_suspended_job_waits_for_resumption() -> None:
    job = active_job(suspend=True)
    assert sentence_for(job, [pod(job, 1)]) == "the operator waits for digits-1 to end"
    assert sentence_for(job) == "none: the operator waits until spec.suspend is false"


FINISHED: dict[str, tuple[bool, dict[str, Any], dict[str, Any], str]] = {
    "completed": (True, {}, {"phase": "Succeeded"}, "none: the job is finished"),
    "failed": (False, {}, {"phase": "Failed"}, "none: the job is finished"),
    "failed, pods still run": (False, {}, {}, "the operator waits for digits-0 to end"),
    "cleanPodPolicy All": (
        True,
        {"cleanPodPolicy": "All"},
        {"phase": "Succeeded"},
        "the operator deletes digits-0",
    ),
    "ttlSecondsAfterFinished": (
        True,
        {"ttlSecondsAfterFinished": 9},
        {"phase": "Succeeded"},
        "the operator deletes the job 9 s after its completion time",
    ),
}


@pytest.mark.parametrize(
    ("succeeded", "spec", "fields", "sentence"), FINISHED.values(), ids=FINISHED.keys()
)
def test_next_action_of_a_finished_job_is_cleanup_or_none(
    succeeded: bool, spec: dict[str, Any], fields: dict[str, Any], sentence: str
) -> None:
    job = finished_job(succeeded=succeeded, **spec)
    assert sentence_for(job, [pod(job, 0, **fields)]) == sentence


def test_next_action_alone_causes_no_status_write() -> None:
    """During a whole start the sentence changes only when the rest of the status does."""
    status = {"stalled_attempts": 1, "last_failure": last_failure(1, pod="digits-1")}
    job = active_job(attempt=2, formed=False, status=status, **SAVES)
    before = [pod(job, 0, attempt="1"), pod(job, 1, attempt="1")]
    pending = pod(job, 1, phase="Pending", ready=False)
    looks: list[list[PodView]] = [
        before,
        [pod(job, 0, ready=False), pod(job, 1, attempt="1", deleting=True)],
        [pod(job, 0, ready=False)],
        [pod(job, 0, ready=False), pending],
        [pod(job, 0, ready=False), pod(job, 1, ready=False)],
        list(all_pods(job)),
    ]
    statuses = {i: agent_status(i, attempt=2) for i in range(2)}
    sentences = []
    for look in [look for look in looks for _ in range(2)]:
        old, new = job.status, plan_for(job, look, statuses=statuses).status
        silent = new.model_copy(update={"next_action": old.next_action})
        assert new == old or silent != old
        job = with_status(job, **dict(new))
        sentences.append(new.next_action)
    assert list(dict.fromkeys(sentences)) == [
        "the operator recreates digits-1",
        "the operator waits until all ranks of attempt 2 are training",
        "none: all ranks are training",
    ]


def test_next_action_of_a_failed_job_waits_for_the_living_pod() -> None:
    job = active_job(maxRestarts=0)
    dead = pod(job, 1, phase="Failed", ready=False, termination=ended(1))
    assert sentence_for(job, [pod(job, 0), dead]) == "the operator waits for digits-0 to end"
