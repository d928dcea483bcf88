"""Faults without a report, or with a late one: silent peers and offline kubelets."""

from typing import Any

import pytest

from ddp_operator.api.status import Cause
from ddp_operator.reconcile.plan import CreatePod, DeletePod
from ddp_wire.contract import ExitCode
from ddp_wire.messages import AgentStatus, Timeline
from tests.operator.support import (
    active_job,
    after,
    agent_status,
    all_pods,
    ended,
    failed_status,
    failure,
    last_failure,
    plan_for,
    pod,
)


def test_silent_pod_is_the_root_cause_of_secondary_failures() -> None:
    """A Kubernetes node that dies can reset its connections, but cannot report its end."""
    job = active_job()
    statuses = {0: failed_status(0, at=after(-3).timestamp(), secondary=True, message="peer gone")}
    found = failure(plan_for(job, all_pods(job), statuses=statuses))
    assert (found.reason, found.cause, found.pod) == ("PeerLost", Cause.INFRASTRUCTURE, "digits-1")
    assert found.message.startswith(
        "digits-1 does not answer, and its peers could not continue: rank 0"
    )


def test_secondary_failures_are_application_failures_when_every_agent_answers() -> None:
    job = active_job()
    statuses = {
        0: failed_status(0, at=after(-3).timestamp(), secondary=True, message="peer gone"),
        1: agent_status(1, phase="Training"),
    }
    assert failure(plan_for(job, all_pods(job), statuses=statuses)).cause is Cause.APPLICATION


LAUNCHED = Timeline(ordered=after(-9).timestamp(), launched=after(-8).timestamp())
SPAWNED = LAUNCHED.model_copy(update={"spawned": after(-7).timestamp()})
WAITS = Timeline(ordered=after(-2).timestamp())


def lost_peer(index: int, timeline: Timeline, **failure: Any) -> AgentStatus:
    """Return the report of an agent whose ranks failed because they lost a peer."""
    found = failed_status(index, secondary=True, message="peer gone", **failure)
    return found.model_copy(update={"timeline": timeline})


@pytest.mark.parametrize("attempt", [1, 0], ids=["waits", "has no order yet"])
@pytest.mark.parametrize("replaced", [0, 1])
def test_pod_that_was_replaced_after_the_start_is_an_infrastructure_fault(
    replaced: int, attempt: int
) -> None:
    """The agent of the new pod answers, but no rank starts before torchrun runs on all nodes."""
    job = active_job(formed=False)
    statuses = {
        replaced: agent_status(replaced, attempt=attempt, phase="Waiting", timeline=WAITS),
        1 - replaced: lost_peer(1 - replaced, SPAWNED),
    }
    assert plan_for(job, all_pods(job), statuses=statuses, undecided=1).status.attempt == 1
    plan = plan_for(job, all_pods(job), statuses=statuses)
    found = failure(plan)
    assert (found.reason, found.cause) == ("PeerLost", Cause.INFRASTRUCTURE)
    assert (found.pod, found.node) == (f"digits-{replaced}", None)
    assert found.message.startswith(
        f"digits-{replaced} was replaced, and its peers could not continue: rank"
    )
    assert (plan.status.restarts, plan.status.infrastructure_restarts) == (0, 1)


def test_agent_of_node_0_names_the_replaced_pod() -> None:
    """The pod vanished before the rendezvous was complete. No timeline shows it."""
    job = active_job(nodes=3, formed=False)
    statuses = {
        0: lost_peer(0, LAUNCHED, replaced_node=2),
        1: agent_status(1, phase="Waiting", timeline=WAITS),
        2: agent_status(2, phase="Waiting", timeline=WAITS),
    }
    found = failure(plan_for(job, all_pods(job), statuses=statuses))
    assert (found.pod, found.cause) == ("digits-2", Cause.INFRASTRUCTURE)


@pytest.mark.parametrize("claimed", [None, -1, 2, 2**53])
@pytest.mark.parametrize("peer", [LAUNCHED, WAITS], ids=["has started torchrun", "waits"])
def test_secondary_failure_without_a_lost_pod_is_an_application_failure(
    peer: Timeline, claimed: int | None
) -> None:
    """Node 0 fails before the rendezvous: the others may still wait for its store."""
    job = active_job(formed=False)
    mine = SPAWNED if peer is LAUNCHED else LAUNCHED
    phase = "Starting" if peer is LAUNCHED else "Waiting"
    statuses = {
        0: lost_peer(0, mine, replaced_node=claimed),
        1: agent_status(1, phase=phase, timeline=peer),
    }
    assert failure(plan_for(job, all_pods(job), statuses=statuses)).cause is Cause.APPLICATION


def test_application_failure_counts_although_another_pod_was_replaced() -> None:
    job = active_job(formed=False)
    statuses = {
        0: failed_status(0, message="E: no", replaced_node=1),
        1: agent_status(1, phase="Waiting", timeline=WAITS),
    }
    assert failure(plan_for(job, all_pods(job), statuses=statuses)).cause is Cause.APPLICATION


@pytest.mark.parametrize(
    ("seen", "counts"),
    [
        ("nothing", False),
        ("its agent reported attempt 1", False),
        ("its agent reported attempt 2", True),
        ("the pod was created for attempt 2", True),
        ("all ranks have joined", True),
        ("torchrun has started elsewhere", True),
    ],
)
def test_late_termination_belongs_to_the_attempt_in_which_it_happened(
    seen: str, counts: bool
) -> None:
    """The kubelet was offline, and the annotation already names the next attempt."""
    job = active_job(attempt=2, formed=seen == "all ranks have joined")
    first = "2" if seen == "the pod was created for attempt 2" else "1"
    dead = pod(job, 1, phase="Failed", first_attempt=first, termination=ended(137))
    statuses = {0: agent_status(0, attempt=2, phase="Waiting")}
    if seen.startswith("its agent reported"):
        statuses[1] = agent_status(1, attempt=int(seen[-1]), phase="Waiting")
    if seen == "torchrun has started elsewhere":
        timeline = Timeline(ordered=1.0, launched=2.0)
        statuses[0] = agent_status(0, attempt=2, phase="Starting", timeline=timeline)
    plan = plan_for(job, [pod(job, 0), dead], statuses=statuses)
    assert plan.status.attempt == (3 if counts else 2)
    if not counts:
        assert [type(a) for a in plan.actions] == [DeletePod, CreatePod]


JOINED = Timeline(ordered=after(-9).timestamp(), joined=after(-5).timestamp())
STOPPED: dict[str, Any] = {"phase": "Preempted", "timeline": JOINED}


@pytest.mark.parametrize("answers", [False, True])
def test_stop_of_the_peers_is_attributed_to_the_replaced_pod(
    answers: bool,
) -> None:
    """The operator treated the pod as late, because it had not seen that all ranks had joined."""
    job = active_job(formed=False)
    statuses = {1: agent_status(1, **STOPPED)} | (
        {0: agent_status(0, phase="Waiting")} if answers else {}
    )
    phase = "Running" if answers else "Pending"
    pods = [pod(job, 0, phase=phase, ready=False), pod(job, 1, ready=False)]
    assert plan_for(job, pods, statuses=statuses, undecided=1).status.attempt == 1
    found = failure(plan_for(job, pods, statuses=statuses, undecided=3))
    assert (found.reason, found.cause, found.pod) == ("PeerLost", Cause.INFRASTRUCTURE, "digits-0")
    assert found.message == (
        "digits-0 left the attempt, and its peers could not continue:"
        " digits-1 was stopped on request"
    )


@pytest.mark.parametrize(
    ("peer", "reason", "cause"),
    [
        (None, "PodLost", Cause.INFRASTRUCTURE),
        ({}, "PodLost", Cause.INFRASTRUCTURE),
        ({"disruption": "EvictionByEvictionAPI"}, "EvictionByEvictionAPI", Cause.FREE),
    ],
)
def test_stop_of_the_peers_is_attributed_to_the_deleted_pod(
    peer: dict[str, Any] | None, reason: str, cause: Cause
) -> None:
    job = active_job(formed=False)
    leaving = [] if peer is None else [pod(job, 0, deleting=True, **peer)]
    pods = [*leaving, pod(job, 1, ready=False)]
    found = failure(plan_for(job, pods, statuses={1: agent_status(1, **STOPPED)}))
    assert (found.reason, found.cause, found.pod) == (reason, cause, "digits-0")


@pytest.mark.parametrize("peer", ["still trains", "stopped too", "ended", "sends no report"])
def test_stop_is_requested_when_all_pods_take_part(peer: str) -> None:
    job = active_job(formed=False, maxRestarts=0)
    statuses = {0: agent_status(0, timeline=JOINED), 1: agent_status(1, **STOPPED)}
    other = pod(job, 0, ready=False)
    if peer == "sends no report":
        del statuses[0]
    if peer == "stopped too":
        statuses[0] = agent_status(0, **STOPPED)
    if peer == "ended":
        end = ended(ExitCode.PREEMPTED, final=agent_status(0, **STOPPED))
        other = pod(job, 0, phase="Failed", ready=False, termination=end)
    plan = plan_for(job, [other, pod(job, 1, ready=False)], statuses=statuses, now=after(3))
    found = failure(plan)
    assert (found.reason, found.cause) == ("Preempted", Cause.FREE)


@pytest.mark.parametrize("gone", [False, True], ids=["marked", "deleted"])
def test_pod_of_a_removed_node_is_lost_only_once(gone: bool) -> None:
    """The peers report the silent pod before Kubernetes deletes it, so attempt 2 waits for it."""
    blamed = last_failure(pod="digits-1", cause=Cause.INFRASTRUCTURE)
    counted = {"last_failure": blamed, "infrastructure_restarts": 1}
    job = active_job(attempt=2, formed=False, status=counted)
    marked = pod(job, 1, phase="Failed", ready=False, disruption="DeletionByPodGC")
    waits = {0: agent_status(0, attempt=2, phase="Waiting")}
    plan = plan_for(job, [pod(job, 0, ready=False), *([] if gone else [marked])], statuses=waits)
    assert (plan.status.attempt, plan.status.infrastructure_restarts) == (2, 1)
    assert [a.name for a in plan.actions if isinstance(a, CreatePod)] == ["digits-1"] * gone


STOP = agent_status(1, attempt=2, phase="Preempted")
REMOVED: dict[str, dict[str, Any]] = {
    "its agent stopped": {"termination": ended(ExitCode.PREEMPTED, final=STOP)},
    "its agent left no report": {"termination": ended(ExitCode.PREEMPTED)},
    "its start was interrupted": {"termination": ended(143)},
    "its grace period ended": {"termination": ended(137)},
    "its kubelet did not answer": {},
}


@pytest.mark.parametrize("fields", REMOVED.values(), ids=REMOVED.keys())
@pytest.mark.parametrize("disruption", [None, "DeletionByTaintManager", "EvictionByEvictionAPI"])
def test_removed_pod_of_a_waiting_attempt_uses_no_budget(
    fields: dict[str, Any], disruption: str | None
) -> None:
    """A job that waits for days for another pod may lose this pod many times."""
    job = active_job(attempt=2, formed=False, checkpoint={"claimName": "shared"})
    removed = pod(
        job, 1, phase="Failed", ready=False, deleting=True, disruption=disruption, **fields
    )
    pending = pod(job, 0, phase="Pending", ready=False)
    statuses = {1: agent_status(1, attempt=2, phase="Waiting")}
    plan = plan_for(job, [pending, removed], statuses=statuses)
    assert (plan.status.attempt, plan.actions) == (2, ())
    assert (plan.status.infrastructure_restarts, plan.status.free_restarts) == (0, 0)
    plan = plan_for(job, [pending])
    assert [a.name for a in plan.actions if isinstance(a, CreatePod)] == ["digits-1"]


def test_failure_before_the_removal_of_its_pod_counts_before_the_start() -> None:
    job = active_job(attempt=2, formed=False)
    failed = ended(1, final=failed_status(1, attempt=2))
    removed = pod(job, 1, phase="Failed", ready=False, deleting=True, termination=failed)
    plan = plan_for(job, [pod(job, 0, phase="Pending", ready=False), removed])
    assert (plan.status.attempt, plan.status.restarts) == (3, 1)


def test_removed_pod_that_stopped_ends_a_started_attempt() -> None:
    job = active_job()
    stop = ended(ExitCode.PREEMPTED, final=agent_status(1, phase="Preempted"))
    fields = {"deleting": True, "disruption": "DeletionByTaintManager", "termination": stop}
    plan = plan_for(job, [pod(job, 0), pod(job, 1, phase="Failed", ready=False, **fields)])
    assert (plan.status.attempt, plan.status.free_restarts) == (2, 1)


def test_pod_of_a_removed_node_ends_an_attempt_that_it_took_part_in() -> None:
    job = active_job()
    marked = pod(job, 1, phase="Failed", ready=False, disruption="DeletionByPodGC")
    plan = plan_for(job, [pod(job, 0), marked])
    assert (plan.status.attempt, plan.status.infrastructure_restarts) == (2, 1)
    assert failure(plan).message == (
        "digits-1 was deleted because its Kubernetes node no longer exists"
    )


def test_bad_input_fails_the_job_although_the_node_is_removed_before_the_start() -> None:
    """The agent of the marked pod has reported this attempt, so its report counts."""
    job = active_job(formed=False)
    marked = pod(job, 1, phase="Failed", ready=False, disruption="DeletionByPodGC")
    statuses = {1: failed_status(1, exit_code=ExitCode.BAD_INPUT)}
    plan = plan_for(job, [pod(job, 0, ready=False), marked], statuses=statuses)
    assert failure(plan).reason == "BadInput"
    assert plan.status.attempt == 1
