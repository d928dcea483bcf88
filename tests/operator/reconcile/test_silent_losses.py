"""Losses that nobody tells of, or that are told late: silent peers, kubelets that were away."""

from typing import Any

import pytest

from ddp_operator.api.status import Cause
from ddp_operator.reconcile.plan import CreatePod, DeletePod, Plan
from ddp_wire.contract import ExitCode, Timeline
from tests.operator.support import (
    active_job,
    after,
    all_pods,
    ended,
    failed_word,
    plan_for,
    pod,
    word,
)


def failure(plan: Plan) -> Any:
    assert plan.status.last_failure is not None
    return plan.status.last_failure


def test_ranks_that_fell_with_a_pod_that_does_not_answer_were_lost_with_it() -> None:
    """As when a node dies with its connections reset: nobody there can say so."""
    job = active_job()
    words = {0: failed_word(0, at=after(-3).timestamp(), secondary=True, message="peer gone")}
    found = failure(plan_for(job, all_pods(job), words=words))
    assert (found.reason, found.cause, found.pod) == ("PeerLost", Cause.INFRASTRUCTURE, "digits-1")
    assert found.message.startswith("digits-1 does not answer, and with it fell others: rank 0")


def test_ranks_that_fell_while_every_agent_answers_fell_by_themselves() -> None:
    job = active_job()
    words = {
        0: failed_word(0, at=after(-3).timestamp(), secondary=True, message="peer gone"),
        1: word(1, phase="Training"),
    }
    assert failure(plan_for(job, all_pods(job), words=words)).cause is Cause.APPLICATION


@pytest.mark.parametrize(("seconds", "counts"), [(-1, False), (0, True), (5, True)])
def test_an_end_that_is_told_late_belongs_to_the_attempt_in_which_it_was(
    seconds: float, counts: bool
) -> None:
    """The kubelet was away: the annotation names the next attempt by now."""
    job = active_job(attempt=2)
    dead = pod(job, 1, phase="Failed", termination=ended(137, at=after(seconds)))
    plan = plan_for(job, [pod(job, 0), dead])
    assert plan.status.attempt == (3 if counts else 2)
    if not counts:
        assert [type(a) for a in plan.actions] == [DeletePod, CreatePod]


JOINED = Timeline(ordered=after(-9).timestamp(), joined=after(-5).timestamp())
STOPPED: dict[str, Any] = {"phase": "Preempted", "timeline": JOINED}


@pytest.mark.parametrize("answers", [False, True])
def test_ranks_that_stopped_with_a_pod_that_was_replaced_were_not_asked_themselves(
    answers: bool,
) -> None:
    """The pod went before it was seen that all ranks had met, so it was taken for a late one."""
    job = active_job(formed=False)
    words = {1: word(1, **STOPPED)} | ({0: word(0, phase="Waiting")} if answers else {})
    phase = "Running" if answers else "Pending"
    pods = [pod(job, 0, phase=phase, ready=False), pod(job, 1, ready=False)]
    assert plan_for(job, pods, words=words, now=after(1)).status.attempt == 1
    found = failure(plan_for(job, pods, words=words, now=after(3)))
    assert (found.reason, found.cause, found.pod) == ("PeerLost", Cause.INFRASTRUCTURE, "digits-0")
    assert found.message == (
        "digits-0 has no part in it any more, and with it fell others:"
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
def test_ranks_that_stopped_with_a_pod_that_goes_tell_why_it_goes(
    peer: dict[str, Any] | None, reason: str, cause: Cause
) -> None:
    job = active_job(formed=False)
    going = [] if peer is None else [pod(job, 0, deleting=True, deletion_due=after(30), **peer)]
    pods = [*going, pod(job, 1, ready=False)]
    found = failure(plan_for(job, pods, words={1: word(1, **STOPPED)}))
    assert (found.reason, found.cause, found.pod) == (reason, cause, "digits-0")


@pytest.mark.parametrize("peer", ["trains still", "stopped too", "has ended", "not heard"])
def test_ranks_that_stop_while_all_pods_take_part_were_asked_to(peer: str) -> None:
    job = active_job(formed=False, maxRestarts=0)
    words = {0: word(0, timeline=JOINED), 1: word(1, **STOPPED)}
    other = pod(job, 0, ready=False)
    if peer == "not heard":
        del words[0]
    if peer == "stopped too":
        words[0] = word(0, **STOPPED)
    if peer == "has ended":
        gone = ended(ExitCode.PREEMPTED, final=word(0, **STOPPED))
        other = pod(job, 0, phase="Failed", ready=False, termination=gone)
    plan = plan_for(job, [other, pod(job, 1, ready=False)], words=words, now=after(3))
    found = failure(plan)
    assert (found.reason, found.cause) == ("Preempted", Cause.FREE)
