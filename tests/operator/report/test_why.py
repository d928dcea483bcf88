"""`ddpjob why`: each state has a cause, an advice and a command."""

from typing import Any

import pytest

from ddp_operator.api.job import parse_job
from ddp_operator.report.why import Why, explain
from tests.operator.support import job_manifest

TIME = "2026-03-01T12:00:00Z"


def condition(kind: str, status: str, reason: str, message: str = "") -> dict[str, Any]:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": TIME,
    }


def why(state: str, message: str = "it is so", **status: Any) -> Why:
    value = {"Completed": "True", "Failed": "False"}.get(state, "Unknown")
    conditions = [condition("Succeeded", value, state, message), *status.pop("conditions", [])]
    document = {**job_manifest(nodes=2), "status": {"conditions": conditions, **status}}
    return explain(parse_job(document), options=" -n team-a")


def failure(reason: str, **fields: Any) -> dict[str, Any]:
    return {"attempt": 3, "reason": reason, "message": "rank 1 failed", "time": TIME, **fields}


def test_running_job_has_no_problem_and_its_time_left() -> None:
    found = why("Running", "4 ranks are training", progress={"step": 3, "etaSeconds": 90})
    assert not found.problem
    assert found.what == "digits runs: 4 ranks are training. About 1 min 30 s are left."
    assert found.advice == "Nothing is wrong."
    assert found.command == "ddpjob watch digits -n team-a"


def test_slow_rank_is_named_with_its_node() -> None:
    slow = {"rank": 3, "pod": "digits-1", "node": "node-b", "ratio": "1.8", "part": "forward pass"}
    found = why("Running", straggler=slow)
    assert found.problem
    assert "wait for rank 3 (digits-1 on node-b): it needs 1.8 times as long" in found.what
    assert found.advice == "Check that Kubernetes node and its GPU."


def test_rank_without_progress_is_named_with_its_logs() -> None:
    stuck = {
        "rank": 2,
        "pod": "digits-1",
        "activity": "data",
        "step": 7,
        "message": "read() for 40 s",
        "since": TIME,
    }
    found = why("Running", suspect=stuck)
    assert "digits makes no progress: rank 2 in digits-1: read() for 40 s." in found.what
    assert found.command == "ddpjob logs digits -n team-a --rank 2"


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("Unschedulable", "No Kubernetes node has room"),
        ("ErrImagePull", r"Correct spec\.image"),
        ("QuotaExceeded", "Raise the quota of the namespace"),
        ("CheckpointPathInUse", "Wait until the other job has ended"),
        ("NotPermitted", "The operator lacks a right"),
    ],
)
def test_waiting_job_has_an_advice_for_the_reason_of_its_pods(reason: str, advice: str) -> None:
    found = why("Pending", conditions=[condition("PodsReady", "False", reason)])
    assert found.problem
    assert advice.replace("\\", "") in found.advice
    assert found.command == "ddpjob events digits -n team-a"


def test_job_in_a_queue_is_no_problem() -> None:
    found = why("Pending", conditions=[condition("PodsReady", "False", "SchedulingGated")])
    assert (found.problem, "the queue admits it" in found.advice) == (False, True)


def test_claim_without_a_volume_comes_before_the_pods() -> None:
    waits = condition("ClaimBound", "False", "Pending")
    found = why("Pending", conditions=[waits, condition("PodsReady", "False", "Unschedulable")])
    assert found.advice.startswith("Check the storage class")


def test_failed_job_has_the_end_of_its_traceback_and_the_command_for_its_output() -> None:
    trace = "Traceback\n  File x\nValueError: no such label"
    last = failure("RankFailed", rank=1, traceback=trace)
    found = why(
        "Failed", "rank 1 failed (attempt 3 is not retried: maxRestarts is 3)", lastFailure=last
    )
    assert found.problem
    assert found.what.endswith("Its traceback ends with: ValueError: no such label.")
    assert found.advice == "The program itself fails: its output shows why."
    assert found.command == "ddpjob logs digits -n team-a --attempt 3 --rank 1"


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("OOMKilled", "Raise spec.resources.limits.memory"),
        ("BadInput", "Correct the setting"),
        ("VolumeFailed", "Make room on the volume"),
    ],
)
def test_failed_job_has_an_advice_for_its_cause(reason: str, advice: str) -> None:
    assert why("Failed", lastFailure=failure(reason)).advice.startswith(advice)


def test_first_recovery_needs_no_person_and_a_repeated_one_does() -> None:
    first = why("Recovering", lastFailure=failure("OOMKilled"), attemptsWithoutProgress=1)
    assert (first.problem, first.advice) == (False, "The next attempt starts by itself.")
    again = why("Recovering", lastFailure=failure("OOMKilled"), attemptsWithoutProgress=3)
    assert again.problem
    assert again.advice.startswith("3 attempts in a row made no progress. Raise spec.resources")


def test_suspended_job_names_the_update_of_its_checkpoint() -> None:
    saved = {"step": 1200, "path": "/checkpoints/x", "time": TIME}
    found = why("Suspended", lastCheckpoint=saved)
    assert found.advice == "It goes on at update 1,200 when you resume it."
    assert found.command == "ddpjob resume digits -n team-a"


def test_job_that_no_operator_has_seen_is_a_problem() -> None:
    found = explain(parse_job(job_manifest()))
    assert found.problem
    assert "no operator has seen it" in found.what


def test_job_of_another_controller_names_that_controller() -> None:
    found = explain(parse_job(job_manifest(managedBy="kueue.x-k8s.io/multikueue")))
    assert "spec.managedBy names kueue.x-k8s.io/multikueue" in found.what


def test_invalid_local_run_needs_no_kubectl() -> None:
    conditions = [condition("Succeeded", "Unknown", "Invalid", "spec.config: unknown key")]
    found = parse_job({**job_manifest(), "status": {"conditions": conditions}})
    assert explain(found, options=" --dir x").command == ""
    assert explain(found).command == "kubectl edit ddpjob digits -n team-a"


@pytest.mark.parametrize("state", ["Completed", "Invalid", "Starting", "Pending", "Other"])
def test_each_state_has_a_paragraph_and_a_command(state: str) -> None:
    found = why(state)
    assert found.paragraph
    assert found.command
