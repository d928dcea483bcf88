"""Losses that nobody tells of, or that are told late: silent peers, kubelets that were away."""

from typing import Any

import pytest

from ddp_operator.api.status import Cause
from ddp_operator.reconcile.plan import CreatePod, DeletePod, Plan
from tests.unit.support import active_job, after, all_pods, ended, failed_word, plan_for, pod, word


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
