"""Each invariant check finds its violation, and no check fails on a correct history."""

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from ddp_operator.api.job import parse_job
from ddp_operator.builders import names
from ddp_wire import contract
from tests.api.history import Change, History, Request
from tests.api.invariants import CHECKS, FOREIGN_UID, violations
from tests.operator.support import job_manifest
from tests.scenarios.flows import NAME

JSON = dict[str, Any]
JOB = job_manifest(NAME, nodes=2, maxRestarts=1, maxInfrastructureRestarts=1)
UID = JOB["metadata"]["uid"]
START, LATER = "2026-03-01T12:00:00Z", "2026-03-01T12:00:09Z"


class HistoryBuilder:
    """Builder of a history, one event at a time."""

    def __init__(self) -> None:
        self._versions = itertools.count(1)
        self.history = History()
        self.statuses: list[JSON] = []

    def add(self, kind: str, resource: str, thing: JSON) -> None:
        added = copy.deepcopy(thing)
        added["metadata"]["resourceVersion"] = str(next(self._versions))
        self.history.changes.append(Change(kind, resource, added))

    def status(self, reason: str, **fields: Any) -> None:
        """Add a status with this summary reason."""
        value = {"Completed": "True", "Failed": "False"}.get(reason, "Unknown")
        since = START if value == "Unknown" else LATER
        summary = {"type": "Succeeded", "status": value, "reason": reason, "message": "so"}
        status = {
            "attempt": 1,
            "observedGeneration": 1,
            "conditions": [{**summary, "lastTransitionTime": since}],
        }
        if value != "Unknown":
            status["completionTime"] = LATER
        self.add("MODIFIED", "ddpjobs", {**JOB, "status": {**status, **fields}})

    def pod(self, kind: str, index: int = 0, attempt: int = 1, name: str = "") -> None:
        job = parse_job(JOB)
        labels = {**names.labels(job), contract.LABEL_NODE_INDEX: str(index)}
        metadata = {
            "name": name or f"{NAME}-{index}",
            "labels": labels,
            "annotations": {contract.ANNOTATION_ATTEMPT: str(attempt)},
            "ownerReferences": [names.owner_reference(job)],
        }
        self.add(kind, "pods", {"metadata": metadata, "status": {"phase": "Running"}})

    def change(self, **metadata: Any) -> None:
        """Replace metadata fields in the last change."""
        last = self.history.changes[-1]
        thing = {**last.object, "metadata": {**last.object["metadata"], **metadata}}
        self.history.changes[-1] = Change(last.type, last.resource, thing)

    def request(self, verb: str, resource: str, name: str) -> None:
        self.history.requests.append(Request(verb, resource, name, 200))


def correct_history() -> HistoryBuilder:
    """Return a run of two pods that restarts once and completes."""
    builder = HistoryBuilder()
    builder.add("ADDED", "ddpjobs", JOB)
    builder.status("Pending")
    builder.pod("ADDED", 0)
    builder.pod("ADDED", 1)
    builder.status("Starting")
    builder.status("Running")
    builder.status("Recovering", attempt=2, restarts=1)
    builder.pod("MODIFIED", 0, 2)
    builder.pod("DELETED", 1)
    builder.pod("ADDED", 1, 2)
    builder.status("Running", attempt=2, restarts=1)
    builder.status("Completed", attempt=2, restarts=1)
    builder.request("update", "ddpjobs/status", NAME)
    builder.request("create", "pods", f"{NAME}-0")
    builder.request("delete", "pods", f"{NAME}-1")
    return builder


def two_pods_with_one_node_index(builder: HistoryBuilder) -> None:
    builder.pod("ADDED", 1, 2, name=f"{NAME}-01")


def child_without_an_owner(builder: HistoryBuilder) -> None:
    builder.pod("ADDED", 2, 2)
    builder.change(ownerReferences=[])


def child_of_another_owner(builder: HistoryBuilder) -> None:
    builder.pod("ADDED", 2, 2)
    owner = {**names.owner_reference(parse_job(JOB)), "uid": FOREIGN_UID}
    builder.change(ownerReferences=[owner])


def child_that_outlives_its_job(builder: HistoryBuilder) -> None:
    last = next(c for c in reversed(builder.history.changes) if c.resource == "ddpjobs")
    builder.add("DELETED", "ddpjobs", dict(last.object))


def finished_job_that_runs_again(builder: HistoryBuilder) -> None:
    builder.status("Running", attempt=2, restarts=1)


def running_job_that_is_starting_again(builder: HistoryBuilder) -> None:
    builder.history.changes.pop()
    builder.status("Starting", attempt=2, restarts=1)


def observed_generation_ahead(builder: HistoryBuilder) -> None:
    builder.status("Completed", attempt=2, restarts=1, observedGeneration=2)


def end_without_completion_time(builder: HistoryBuilder) -> None:
    builder.history.changes.pop()
    builder.status("Completed", attempt=2, restarts=1)
    del builder.history.changes[-1].object["status"]["completionTime"]


def failure_without_a_message(builder: HistoryBuilder) -> None:
    builder.history.changes.pop()
    builder.status("Failed", attempt=2, restarts=1)
    builder.history.changes[-1].object["status"]["conditions"][0]["message"] = ""


def completion_time_that_changes(builder: HistoryBuilder) -> None:
    builder.status("Completed", attempt=2, restarts=1, completionTime="2026-03-01T12:01:00Z")


def transition_time_without_a_transition(builder: HistoryBuilder) -> None:
    builder.status("Completed", attempt=2, restarts=1)
    condition = builder.history.changes[-1].object["status"]["conditions"][0]
    condition["lastTransitionTime"] = START


def restart_that_is_not_counted(builder: HistoryBuilder) -> None:
    builder.status("Completed", attempt=3, restarts=1)


def restart_that_is_counted_twice(builder: HistoryBuilder) -> None:
    builder.status("Completed", attempt=2, restarts=1, infrastructureRestarts=1)


def restart_beyond_its_limit(builder: HistoryBuilder) -> None:
    builder.status("Completed", attempt=3, restarts=2)


def restart_counter_that_decreases(builder: HistoryBuilder) -> None:
    builder.status("Completed", attempt=2, restarts=0, freeRestarts=1)


def attempt_that_is_skipped(builder: HistoryBuilder) -> None:
    builder.status("Completed", attempt=4, restarts=1, freeRestarts=2)


def pod_ahead_of_the_status(builder: HistoryBuilder) -> None:
    builder.pod("MODIFIED", 0, 3)


def foreign_pod_that_is_deleted(builder: HistoryBuilder) -> None:
    builder.request("delete", "pods", "foreign")


def foreign_pod_that_is_changed(builder: HistoryBuilder) -> None:
    foreign = {"metadata": {"name": "x", "labels": {}}, "status": {}}
    builder.add("ADDED", "pods", foreign)
    builder.add("MODIFIED", "pods", foreign)


def request_that_is_not_allowed(builder: HistoryBuilder) -> None:
    builder.request("create", "secrets", "token")


VIOLATIONS: dict[Callable[[HistoryBuilder], None], str] = {
    two_pods_with_one_node_index: "digits-1 and digits-01 are both active in attempt 2",
    child_without_an_owner: "children_are_owned: pods digits-2 is controlled by []",
    child_of_another_owner: f"children_are_owned: pods digits-2 is controlled by ['{FOREIGN_UID}",
    child_that_outlives_its_job: "children_are_owned: pods digits-0 outlives its job",
    finished_job_that_runs_again: "the summary went from Completed to Running",
    running_job_that_is_starting_again: "the summary went from Running to Starting",
    observed_generation_ahead: "observedGeneration is ahead of the generation",
    end_without_completion_time: "completionTime must be set exactly when the job ended",
    failure_without_a_message: "the job failed without a message",
    completion_time_that_changes: "completionTime changed",
    transition_time_without_a_transition: "lastTransitionTime of Succeeded changed without",
    restart_that_is_not_counted: "counters_match_attempts: attempt 3 has 1 restarts",
    restart_that_is_counted_twice: "counters_match_attempts: attempt 2 has 2 restarts",
    restart_beyond_its_limit: "counters_match_attempts: restarts is 2, but maxRestarts is 1",
    restart_counter_that_decreases: "counters_match_attempts: restarts decreased",
    attempt_that_is_skipped: "counters_match_attempts: the attempt changed by 2",
    pod_ahead_of_the_status: "digits-0 carries attempt 3, but the status is at 2",
    foreign_pod_that_is_deleted: "changed a foreign object: delete pods foreign (200)",
    foreign_pod_that_is_changed: "foreign object pods x was changed",
    request_that_is_not_allowed: "a request that it must not send: create secrets token (200)",
}


def test_correct_scenario_history_violates_no_invariant() -> None:
    assert violations(correct_history().history) == []


@pytest.mark.parametrize("violate", VIOLATIONS, ids=lambda v: v.__name__)
def test_invariant_check_finds_its_violation(violate: Callable[[HistoryBuilder], None]) -> None:
    builder = correct_history()
    violate(builder)
    found = violations(builder.history)
    assert any(VIOLATIONS[violate] in sentence for sentence in found), found


def test_every_invariant_check_can_fail() -> None:
    failed = set()
    for violate in VIOLATIONS:
        builder = correct_history()
        violate(builder)
        failed |= {sentence.partition(":")[0] for sentence in violations(builder.history)}
    assert failed == {check.__name__ for check in CHECKS}
