"""Invariants that hold in every history of the operator, whatever faults were injected.

Each check yields one message for each violation.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from ddp_operator.builders.gangs.kueue import GROUP
from ddp_wire import contract, node_ranges
from ddp_wire.orders import order_from_text
from tests.api.history import Change, History
from tests.scenarios.pods import TERMINAL

JSON = Mapping[str, Any]
Check = Callable[[History], Iterator[str]]

_ACTIVE = {"Pending", "Starting", "Running", "Recovering"}
_NEXT = {
    "": {"Pending", "Suspended"},
    "Pending": {*_ACTIVE, "Suspended", "Completed", "Failed"},
    "Starting": {*_ACTIVE, "Suspended", "Completed", "Failed"},
    # Once all ranks train, the attempt never goes back to wait for some of them.
    "Running": {*_ACTIVE - {"Starting"}, "Suspended", "Completed", "Failed"},
    "Recovering": {*_ACTIVE, "Suspended", "Completed", "Failed"},
    "Suspended": {"Suspended", "Pending"},
    "Completed": {"Completed"},
    "Failed": {"Failed"},
}
"""Reasons that the STATUS column may show next."""
_VALUES = {"Completed": "True", "Failed": "False"}
_BUDGETS = {"restarts": "maxRestarts", "infrastructureRestarts": "maxInfrastructureRestarts"}
_WRITES = {
    "ddpjobs/status": {"update"},
    "ddpjobs": {"delete"},
    "pods": {"create", "patch", "delete"},
    "services": {"create"},
    "networkpolicies": {"create"},
    "persistentvolumeclaims": {"create"},
    "events": {"create"},
    "workloads": {"delete"},
}


def one_pod_per_node_index(history: History) -> Iterator[str]:
    """I1: At most one active pod exists per job, attempt and node index."""
    living: dict[str, tuple[str, str, str]] = {}
    for change in history.of("pods"):
        living.pop(change.name, None)
        if change.type == "DELETED" or not _is_ours(change):
            continue
        if change.object["status"].get("phase") in TERMINAL or _can_never_run(change):
            continue
        if contract.LABEL_INIT_STEP in change.labels:
            continue
        text = change.object["metadata"]["annotations"][contract.ANNOTATION_ATTEMPT]
        attempt = text.partition(":")[0]
        labels = change.labels
        place = (labels[contract.LABEL_JOB_UID], attempt, labels[contract.LABEL_NODE_INDEX])
        other = next((name for name, where in living.items() if where == place), None)
        if other is not None:
            yield f"{other} and {change.name} are both active in attempt {attempt}"
        living[change.name] = place


def children_are_owned(history: History) -> Iterator[str]:
    """I2: Every child is controlled by its job, and none outlives it."""
    for change in history.changes:
        if change.resource == "ddpjobs" or change.type != "ADDED" or not _is_ours(change):
            continue
        owners = change.object["metadata"].get("ownerReferences") or []
        controllers = [o["uid"] for o in owners if o.get("controller") and o["kind"] == "DDPJob"]
        if controllers != [change.labels[contract.LABEL_JOB_UID]]:
            yield f"{change.resource} {change.name} is controlled by {controllers}"
    gone = {c.object["metadata"]["uid"] for c in history.of("ddpjobs") if c.type == "DELETED"}
    for resource in ("pods", "services", "networkpolicies"):
        for name, left in history.remaining(resource).items():
            owner = (left["metadata"].get("labels") or {}).get(contract.LABEL_JOB_UID)
            if owner in gone:
                yield f"{resource} {name} outlives its job"


def conditions_follow_the_state_machine(history: History) -> Iterator[str]:
    """I3: The summary follows the state machine, and no generation is ahead of the job's."""
    before = ""
    for job in history.statuses():
        status = job["status"]
        if status.get("observedGeneration", 0) > job["metadata"]["generation"]:
            yield "observedGeneration is ahead of the generation"
        summary = _condition(job, "Succeeded")
        reason = summary.get("reason", "")
        if reason not in _NEXT[before]:
            yield f"the summary went from {before or 'nothing'} to {reason or 'nothing'}"
            return
        if summary.get("status") != _VALUES.get(reason, "Unknown"):
            yield f"the summary has status {summary.get('status')} for reason {reason}"
        if ("completionTime" in status) != (reason in _VALUES):
            yield f"completionTime must be set exactly when the job ended; reason is {reason}"
        if reason == "Failed" and not summary.get("message"):
            yield "the job failed without a message"
        before = reason
    yield from _transitions(history)


def _transitions(history: History) -> Iterator[str]:
    for before, after in pairwise(history.statuses()):
        for new in after["status"].get("conditions", []):
            old = _condition(before, new["type"])
            same_time = old.get("lastTransitionTime") == new["lastTransitionTime"]
            if old.get("status") == new["status"] and not same_time:
                yield f"lastTransitionTime of {new['type']} changed without a transition"
        ended = before["status"].get("completionTime")
        if ended is not None and after["status"].get("completionTime") != ended:
            yield "completionTime changed"


def counters_match_attempts(history: History) -> Iterator[str]:
    """I4: Attempts and restarts only grow, each new attempt adds one restart, and budgets hold."""
    spent = ("restarts", "infrastructureRestarts", "freeRestarts")
    statuses = history.statuses()
    for job in statuses:
        status, spec = job["status"], job["spec"]
        attempt = status.get("attempt", 0)
        counted_restarts = sum(status.get(name, 0) for name in spent)
        if counted_restarts != max(0, attempt - 1):
            yield f"attempt {attempt} has {counted_restarts} restarts, expected {attempt - 1}"
        for count, limit in _BUDGETS.items():
            if "restartWindowSeconds" not in spec and status.get(count, 0) > spec[limit]:
                yield f"{count} is {status[count]}, but {limit} is {spec[limit]}"
    for before, after in pairwise(statuses):
        for name in spent:
            if after["status"].get(name, 0) < before["status"].get(name, 0):
                yield f"{name} decreased"
        step = after["status"].get("attempt", 0) - before["status"].get("attempt", 0)
        if step not in {0, 1}:
            yield f"the attempt changed by {step}, expected 0 or 1"


def pods_follow_the_status(history: History) -> Iterator[str]:
    """The status holds an attempt and its members before any pod's annotation does."""
    attempt, members = 0, dict[int, frozenset[int]]()
    for change in history.changes:
        if change.resource == "ddpjobs":
            status = change.object.get("status") or {}
            attempt = max(attempt, status.get("attempt", 0))
            if "members" in status:
                members[status["attempt"]] = node_ranges.from_text(status["members"])
        elif change.resource == "pods" and _is_ours(change):
            if contract.LABEL_INIT_STEP in change.labels:
                continue
            text = change.object["metadata"]["annotations"][contract.ANNOTATION_ATTEMPT]
            order = order_from_text(text)
            if order is None:
                if text != contract.ATTEMPT_STOP:
                    yield f"{change.name} carries {text!r}, which is no order"
            elif order.attempt > attempt:
                yield f"{change.name} carries attempt {text}, but the status is at {attempt}"
            elif order.members not in (None, members.get(order.attempt)):
                yield f"{change.name} carries {text}, but the status has other members"


def writes_touch_only_own_objects(history: History) -> Iterator[str]:
    """I7: The operator changes its job's status and its children, and nothing else."""
    ours = {(c.resource, c.name) for c in history.changes if _is_ours(c)}
    ours |= {("workloads", c.labels.get(GROUP, "")) for c in history.of("pods") if _is_ours(c)}
    for request in history.requests:
        resource = request.resource.partition("/")[0]
        if request.verb not in _WRITES.get(request.resource, set()):
            yield f"the operator sent a request that it must not send: {request}"
        elif request.verb in {"patch", "delete"} and (resource, request.name) not in ours:
            yield f"the operator changed a foreign object: {request}"
    for change in history.changes:
        ends = "deletionTimestamp" in change.object["metadata"]
        if change.type == "MODIFIED" and not _is_ours(change) and not ends:
            yield f"foreign object {change.resource} {change.name} was changed"


CHECKS: tuple[Check, ...] = (
    one_pod_per_node_index,
    children_are_owned,
    conditions_follow_the_state_machine,
    counters_match_attempts,
    pods_follow_the_status,
    writes_touch_only_own_objects,
)


def violations(history: History) -> list[str]:
    """Return a message for each violation, prefixed with the name of its check."""
    return [f"{check.__name__}: {found}" for check in CHECKS for found in check(history)]


def _condition(job: JSON, kind: str) -> JSON:
    found: Mapping[str, JSON] = {c["type"]: c for c in job["status"].get("conditions", [])}
    return found.get(kind, {})


def _can_never_run(change: Change) -> bool:
    """Return whether a pod was deleted before it got a Kubernetes node."""
    deleted = "deletionTimestamp" in change.object["metadata"]
    return deleted and "nodeName" not in change.object["spec"]


def _is_ours(change: Change) -> bool:
    """Return whether an object is a job, or carries the labels of a job in this history."""
    if change.resource == "ddpjobs":
        return True
    managed = change.labels.get(contract.LABEL_MANAGED_BY) == contract.MANAGED_BY
    return managed and change.labels.get(contract.LABEL_JOB_UID) != FOREIGN_UID


FOREIGN_UID = "00000000-0000-4000-8000-000000000000"
"""Job uid on objects that resemble the operator's children and belong to another owner."""
