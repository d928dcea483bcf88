"""Each check on histories finds its violation, and nothing in a history that is as it should be."""

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


class Story:
    """A history that is told event by event."""

    def __init__(self) -> None:
        self._versions = itertools.count(1)
        self.history = History()
        self.statuses: list[JSON] = []

    def tell(self, kind: str, resource: str, thing: JSON) -> None:
        told = copy.deepcopy(thing)
        told["metadata"]["resourceVersion"] = str(next(self._versions))
        self.history.changes.append(Change(kind, resource, told))

    def status(self, reason: str, **fields: Any) -> None:
        """The job has a status with this summary."""
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
        self.tell("MODIFIED", "ddpjobs", {**JOB, "status": {**status, **fields}})

    def pod(self, kind: str, index: int = 0, attempt: int = 1, name: str = "") -> None:
        job = parse_job(JOB)
        labels = {**names.labels(job), contract.LABEL_NODE_INDEX: str(index)}
        metadata = {
            "name": name or f"{NAME}-{index}",
            "labels": labels,
            "annotations": {contract.ANNOTATION_ATTEMPT: str(attempt)},
            "ownerReferences": [names.owner_reference(job)],
        }
        self.tell(kind, "pods", {"metadata": metadata, "status": {"phase": "Running"}})

    def change(self, **metadata: Any) -> None:
        """The last change was another one: fields of its object's metadata differ."""
        last = self.history.changes[-1]
        thing = {**last.object, "metadata": {**last.object["metadata"], **metadata}}
        self.history.changes[-1] = Change(last.type, last.resource, thing)

    def request(self, verb: str, resource: str, name: str) -> None:
        self.history.requests.append(Request(verb, resource, name, 200))


def whole() -> Story:
    """A run of two pods that restarts once and completes."""
    story = Story()
    story.tell("ADDED", "ddpjobs", JOB)
    story.status("Pending")
    story.pod("ADDED", 0)
    story.pod("ADDED", 1)
    story.status("Starting")
    story.status("Running")
    story.status("Recovering", attempt=2, restarts=1)
    story.pod("MODIFIED", 0, 2)
    story.pod("DELETED", 1)
    story.pod("ADDED", 1, 2)
    story.status("Running", attempt=2, restarts=1)
    story.status("Completed", attempt=2, restarts=1)
    story.request("update", "ddpjobs/status", NAME)
    story.request("create", "pods", f"{NAME}-0")
    story.request("delete", "pods", f"{NAME}-1")
    return story


def two_pods_in_one_place(story: Story) -> None:
    story.pod("ADDED", 1, 2, name=f"{NAME}-01")


def a_child_without_an_owner(story: Story) -> None:
    story.pod("ADDED", 2, 2)
    story.change(ownerReferences=[])


def a_child_of_another_owner(story: Story) -> None:
    story.pod("ADDED", 2, 2)
    owner = {**names.owner_reference(parse_job(JOB)), "uid": FOREIGN_UID}
    story.change(ownerReferences=[owner])


def a_child_that_outlives_its_job(story: Story) -> None:
    last = next(c for c in reversed(story.history.changes) if c.resource == "ddpjobs")
    story.tell("DELETED", "ddpjobs", dict(last.object))


def a_job_that_runs_after_its_end(story: Story) -> None:
    story.status("Running", attempt=2, restarts=1)


def a_job_that_waits_for_ranks_that_trained(story: Story) -> None:
    story.history.changes.pop()
    story.status("Starting", attempt=2, restarts=1)


def a_generation_that_was_not_there_yet(story: Story) -> None:
    story.status("Completed", attempt=2, restarts=1, observedGeneration=2)


def an_end_without_its_time(story: Story) -> None:
    story.history.changes.pop()
    story.status("Completed", attempt=2, restarts=1)
    del story.history.changes[-1].object["status"]["completionTime"]


def a_failure_without_a_word(story: Story) -> None:
    story.history.changes.pop()
    story.status("Failed", attempt=2, restarts=1)
    story.history.changes[-1].object["status"]["conditions"][0]["message"] = ""


def an_end_that_moves(story: Story) -> None:
    story.status("Completed", attempt=2, restarts=1, completionTime="2026-03-01T12:01:00Z")


def a_transition_without_one(story: Story) -> None:
    story.status("Completed", attempt=2, restarts=1)
    condition = story.history.changes[-1].object["status"]["conditions"][0]
    condition["lastTransitionTime"] = START


def a_restart_that_is_not_counted(story: Story) -> None:
    story.status("Completed", attempt=3, restarts=1)


def a_restart_that_is_counted_twice(story: Story) -> None:
    story.status("Completed", attempt=2, restarts=1, infrastructureRestarts=1)


def a_restart_beyond_its_limit(story: Story) -> None:
    story.status("Completed", attempt=3, restarts=2)


def a_restart_that_is_taken_back(story: Story) -> None:
    story.status("Completed", attempt=2, restarts=0, freeRestarts=1)


def an_attempt_that_is_skipped(story: Story) -> None:
    story.status("Completed", attempt=4, restarts=1, freeRestarts=2)


def a_pod_of_an_attempt_that_nobody_has_decided(story: Story) -> None:
    story.pod("MODIFIED", 0, 3)


def a_stranger_that_is_deleted(story: Story) -> None:
    story.request("delete", "pods", "somebody-elses")


def a_stranger_that_changes(story: Story) -> None:
    stranger = {"metadata": {"name": "x", "labels": {}}, "status": {}}
    story.tell("ADDED", "pods", stranger)
    story.tell("MODIFIED", "pods", stranger)


def a_request_that_it_has_no_use_for(story: Story) -> None:
    story.request("create", "secrets", "token")


VIOLATIONS: dict[Callable[[Story], None], str] = {
    two_pods_in_one_place: "one_pod_per_place: digits-1 and digits-01 live at once for attempt 2",
    a_child_without_an_owner: "children_are_owned: pods digits-2 is controlled by []",
    a_child_of_another_owner: f"children_are_owned: pods digits-2 is controlled by ['{FOREIGN_UID}",
    a_child_that_outlives_its_job: "children_are_owned: pods digits-0 outlives its job",
    a_job_that_runs_after_its_end: "the summary went from Completed to Running",
    a_job_that_waits_for_ranks_that_trained: "the summary went from Running to Starting",
    a_generation_that_was_not_there_yet: "observedGeneration is ahead of the generation",
    an_end_without_its_time: "completionTime does not fit Completed",
    a_failure_without_a_word: "it failed without a word why",
    an_end_that_moves: "completionTime moved",
    a_transition_without_one: "the transition time of Succeeded moved without a transition",
    a_restart_that_is_not_counted: "counts_are_honest: attempt 3 after 1 counted ends of attempts",
    a_restart_that_is_counted_twice: "counts_are_honest: attempt 2 after 2 counted ends",
    a_restart_beyond_its_limit: "counts_are_honest: restarts 2 is beyond maxRestarts 1",
    a_restart_that_is_taken_back: "counts_are_honest: restarts was taken back",
    an_attempt_that_is_skipped: "counts_are_honest: the attempt moved by 2",
    a_pod_of_an_attempt_that_nobody_has_decided: "digits-0 was told of attempt 3 in attempt 2",
    a_stranger_that_is_deleted: "it touched what is not its own: delete pods somebody-elses (200)",
    a_stranger_that_changes: "pods x is not its own and was changed",
    a_request_that_it_has_no_use_for: "it tried to create secrets token (200)",
}


def test_a_history_as_it_should_be_holds() -> None:
    assert violations(whole().history) == []


@pytest.mark.parametrize("violate", VIOLATIONS, ids=lambda v: v.__name__)
def test_a_violation_is_found(violate: Callable[[Story], None]) -> None:
    story = whole()
    violate(story)
    found = violations(story.history)
    assert any(VIOLATIONS[violate] in sentence for sentence in found), found


def test_every_check_can_fail() -> None:
    failed = set()
    for violate in VIOLATIONS:
        story = whole()
        violate(story)
        failed |= {sentence.partition(":")[0] for sentence in violations(story.history)}
    assert failed == {check.__name__ for check in CHECKS}
