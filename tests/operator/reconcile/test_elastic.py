"""Members of the attempts of an elastic job: start, shrink, grow, and a new `nodes`."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_operator.api.members import DepartureStatus
from ddp_operator.api.status import AttemptStatus, Cause, ConditionType
from ddp_operator.reconcile.decide import decide
from ddp_operator.reconcile.node_view import NodeView, Taint, Toleration, view_node
from ddp_operator.reconcile.plan import CreatePod, DeletePod
from ddp_wire import node_ranges
from tests.operator.elastic_support import (
    elastic_job,
    grown_at,
    members,
    orders,
    pods,
    starting,
    training,
    waiting,
)
from tests.operator.support import (
    DEFAULTS,
    NOW,
    UID,
    active_job,
    after,
    agent_status,
    failed_status,
    new_job,
    plan_for,
    pod,
    with_status,
    world,
)

TOLERATION = Toleration("gpu", exists=True)


# --- Orders ---------------------------------------------------------------------------------------


def test_first_attempt_has_all_nodes_as_members() -> None:
    plan = plan_for(new_job(nodes=3, elastic={"minNodes": 1}))
    assert plan.status.members == "0-2"
    created = [a.manifest for a in plan.actions if isinstance(a, CreatePod)]
    assert [c["metadata"]["annotations"]["ddp-trainer.dev/attempt"] for c in created] == [
        "1:0-2"
    ] * 3


def test_job_of_fixed_size_orders_attempts_by_plain_numbers() -> None:
    plan = plan_for(new_job(nodes=2))
    assert plan.status.members == "0-1"
    created = [a.manifest for a in plan.actions if isinstance(a, CreatePod)]
    assert [c["metadata"]["annotations"]["ddp-trainer.dev/attempt"] for c in created] == ["1", "1"]


# --- Start and shrink -----------------------------------------------------------------------------


@pytest.mark.parametrize(("seconds", "expected"), [(29, None), (30, {0, 2})])
def test_job_starts_with_the_nodes_that_are_ready_in_time(
    seconds: int, expected: set[int] | None
) -> None:
    job = starting(elastic_job(3, attempt=1))
    statuses = {0: waiting(job, 0), 2: waiting(job, 2)}
    found = [*pods(job, (0, 2), ()), pod(job, 1, phase="Pending", ready=False, node=None)]
    plan = plan_for(job, found, statuses=statuses, now=after(seconds))
    if expected is None:
        assert plan.status.attempt == 1
        assert plan.requeue_seconds == pytest.approx(30 - seconds)
        return
    assert plan.status.attempt == 2
    assert members(plan) == expected
    assert plan.status.restarts == plan.status.infrastructure_restarts == 0
    assert orders(plan) == {"digits-0": "2:0,2:save", "digits-2": "2:0,2:save"} | {
        "digits-1": "2:0,2:save"
    }
    assert [event.reason for event in plan.events] == ["Resizing"]
    assert "2 of 3 nodes instead of 3, because node 1 is not ready after 30 s" in (
        plan.events[0].message
    )


@pytest.mark.parametrize("reason", ["SpecChanged", "Invalid", "Suspended"])
def test_job_whose_pods_are_all_new_waits_as_long_as_at_its_first_start(reason: str) -> None:
    job = starting(elastic_job(3, attempt=2))
    before = AttemptStatus(number=1, reason=reason, cause=Cause.FREE, message="", end_time=NOW)
    job = with_status(job, attempts=[before])
    statuses = {0: waiting(job, 0), 2: waiting(job, 2)}
    found = [*pods(job, (0, 2), ()), pod(job, 1, phase="Pending", ready=False, node=None)]
    for seconds, attempt in ((29, 2), (30, 3)):
        plan = plan_for(job, found, statuses=statuses, now=after(seconds))
        assert plan.status.attempt == attempt


def test_job_waits_while_fewer_than_min_nodes_are_ready() -> None:
    job = starting(elastic_job(3, 2, attempt=1))
    plan = plan_for(job, pods(job, (0,), ()), statuses={0: waiting(job, 0)}, now=after(999))
    assert plan.status.attempt == 1


def test_node_whose_standby_still_imports_is_not_ready() -> None:
    job = starting(elastic_job(2, attempt=1))
    statuses = {0: waiting(job, 0), 1: waiting(job, 1, warm=False)}
    plan = plan_for(job, pods(job, (0, 1), ()), statuses=statuses, now=after(31))
    assert members(plan) == {0}


@pytest.mark.parametrize("lost", [0, 1])
def test_lost_node_stays_a_member_until_shrink_after_seconds_have_passed(lost: int) -> None:
    job = elastic_job(2)
    rest = 1 - lost
    plan = plan_for(job, pods(job, (rest,)), statuses={rest: training(job, rest)}, now=after(9))
    assert plan.status.attempt == 3
    assert members(plan) == {0, 1}
    assert orders(plan) == {f"digits-{rest}": "3:0-1"}
    assert plan.status.infrastructure_restarts == 1

    job = starting(with_status(job, **dict(plan.status)))
    found, statuses = pods(job, (rest,), ()), {rest: waiting(job, rest)}
    early = plan_for(job, found, statuses=statuses, now=after(9 + 14))
    assert early.status.attempt == 3
    late = plan_for(job, found, statuses=statuses, now=after(9 + 15))
    assert late.status.attempt == 4
    assert members(late) == {rest}
    assert late.status.infrastructure_restarts == 1
    assert late.status.last_resize is not None
    assert (late.status.last_resize.from_nodes, late.status.last_resize.to_nodes) == (2, 1)


def test_member_that_still_saves_does_not_count_as_late() -> None:
    job = starting(elastic_job(2, attempt=3))
    statuses = {0: waiting(job, 0), 1: agent_status(1, attempt=2, phase="Training", warm=True)}
    plan = plan_for(job, pods(job, (0, 1), ()), statuses=statuses, now=after(40))
    assert plan.status.attempt == 3


def test_crashed_rank_leaves_the_members_as_they_are() -> None:
    job = elastic_job(3, members="0,2")
    statuses = {0: failed_status(0, attempt=2), 2: training(job, 2)}
    plan = plan_for(job, pods(job, (0, 2)), statuses=statuses)
    assert plan.status.attempt == 3
    assert members(plan) == {0, 2}
    assert plan.status.last_resize is None


def test_drained_node_leaves_the_members_at_once() -> None:
    job = elastic_job(2)
    drained = pod(job, 1, deleting=True, disruption="EvictionByEvictionAPI")
    plan = plan_for(job, [pod(job, 0), drained], statuses={0: training(job, 0)})
    assert members(plan) == {0}
    assert plan.status.last_resize is not None
    assert plan.status.last_resize.to_nodes == 1


def test_ready_node_takes_the_place_of_a_lost_one() -> None:
    job = elastic_job(3, members="0-1")
    statuses = {0: training(job, 0), 2: waiting(job, 2)}
    plan = plan_for(job, pods(job, (0, 2)), statuses=statuses)
    assert members(plan) == {0, 1, 2}


def test_lost_kubernetes_node_is_a_fault_and_not_recorded_as_a_departure() -> None:
    job = elastic_job(2)
    statuses = {i: training(job, i) for i in (0, 1)}
    marked = pod(job, 1, ready=False, disruption="DeletionByTaintManager")
    assert plan_for(job, [pod(job, 0), marked], statuses=statuses).status.attempt == 2
    deleted = pod(job, 1, ready=False, disruption="DeletionByTaintManager", deleting=True)
    plan = plan_for(job, [pod(job, 0), deleted], statuses=statuses)
    assert members(plan) == {0, 1}
    assert plan.status.infrastructure_restarts == 1


# --- Leave before the loss ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "node",
    [
        NodeView("machine-1", cordoned=True),
        NodeView("machine-1", taints=(Taint("gpu", "broken", "NoSchedule"),)),
        NodeView("machine-1", taints=(Taint("gpu", "", "NoExecute"),)),
    ],
)
def test_member_leaves_a_kubernetes_node_that_accepts_no_more_pods(node: NodeView) -> None:
    job = elastic_job(2)
    seen = world(job, pods(job, (0, 1)), statuses={i: training(job, i) for i in (0, 1)})
    plan = decide(replace(seen, kubernetes_nodes={node.name: node}), DEFAULTS)
    assert members(plan) == {0}
    assert orders(plan)["digits-0"] == "3:0:save"
    assert [a.name for a in plan.actions if isinstance(a, DeletePod)] == ["digits-1"]
    assert plan.status.free_restarts == 1


def test_member_stays_on_a_tolerated_node_and_below_min_nodes() -> None:
    """The tolerations are those of the pod, because the cluster may add some, as for GPUs."""
    cordoned = {"machine-1": NodeView("machine-1", cordoned=True)}
    tainted = NodeView("machine-1", taints=(Taint("gpu", "old", "NoSchedule"),))
    for job, nodes in (
        (elastic_job(2, 2), cordoned),
        (elastic_job(2), {"machine-1": tainted}),
        (active_job(attempt=2), cordoned),
    ):
        tolerant = [replace(one, tolerations=(TOLERATION,)) for one in pods(job, (0, 1))]
        seen = world(job, tolerant, statuses={i: training(job, i) for i in (0, 1)})
        plan = decide(replace(seen, kubernetes_nodes=nodes), DEFAULTS)
        assert plan.status.attempt == 2


def test_job_with_a_silent_member_is_not_resized() -> None:
    job = elastic_job(3, members="0-1")
    statuses = {0: training(job, 0), 2: waiting(job, 2)}
    assert plan_for(job, pods(job, range(3)), statuses=statuses, now=after(999)).status.attempt == 2


@pytest.mark.parametrize("key", ["unschedulable", "unreachable", "memory-pressure"])
def test_taints_that_kubernetes_sets_itself_end_no_attempt(key: str) -> None:
    taint = {"key": f"node.kubernetes.io/{key}", "effect": "NoSchedule"}
    manifest = {"metadata": {"name": "machine-1"}, "spec": {"taints": [taint]}}
    assert view_node(manifest, "gpu").why_unusable(()) is None


def test_members_are_those_of_the_agents_after_a_restore_from_a_backup() -> None:
    job = elastic_job(3)
    report = training(job, 1).model_copy(update={"attempt": 7, "members": "1-2", "job_uid": UID})
    plan = plan_for(job, pods(job, (1, 2)), statuses={1: report})
    assert (plan.status.attempt, plan.status.members) == (7, "1-2")


# --- Grow -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seconds", "expected"), [(299, None), (300, {0, 1, 2, 3})])
def test_job_grows_by_all_ready_nodes_at_once_after_the_grow_interval(
    seconds: int, expected: set[int] | None
) -> None:
    plan = grown_at(elastic_job(4, members="0,2"), seconds)
    if expected is None:
        assert plan.status.attempt == 2
        return
    assert plan.status.attempt == 3
    assert members(plan) == expected
    assert orders(plan)["digits-0"] == "3:0-3:save"


def test_job_does_not_grow_onto_a_node_that_lost_members_twice_within_an_hour() -> None:
    left = [DepartureStatus(node="machine-1", time=after(s)) for s in (-1000, -900)]
    job = elastic_job(3, members="0", status={"departures": left})
    assert members(grown_at(job, 300)) == {0, 2}
    assert members(grown_at(job, 3000)) == {0, 1, 2}


def test_job_that_trains_is_running_although_a_quota_refuses_another_pod() -> None:
    job = elastic_job(2, members="0")
    error = "exceeded quota: pods"
    plan = plan_for(job, pods(job, (0,)), statuses={0: training(job, 0)}, blocked=error)
    summary = plan.status.condition(ConditionType.SUCCEEDED)
    assert summary is not None
    assert summary.reason == "Running"
    assert summary.message.endswith(f"; {error}")


def test_status_says_when_the_job_grows() -> None:
    plan = grown_at(elastic_job(3, members="0,2"), 10)
    assert plan.status.next_action == "the operator adds node 1 at 12:05:00 UTC"
    left = [DepartureStatus(node="machine-1", time=after(s)) for s in (-1200, -900)]
    job = elastic_job(2, members="0", status={"departures": left})
    assert grown_at(job, 300).status.next_action == (
        "none: members left the Kubernetes node machine-1 twice within an hour, so the job grows"
        " onto it at 12:40 UTC at the earliest"
    )


def test_lost_member_is_recorded_as_a_departure_from_its_kubernetes_node() -> None:
    job = elastic_job(2)
    seen = world(job, [pod(job, 0)], statuses={0: training(job, 0)})
    plan = decide(replace(seen, last_nodes={1: "machine-1"}), DEFAULTS)
    assert [(one.node, one.time) for one in plan.status.departures] == [("machine-1", NOW)]


# --- A new number of nodes ------------------------------------------------------------------------


def test_lower_spec_nodes_ends_the_surplus_pods_at_a_step_boundary() -> None:
    job = elastic_job(4)
    smaller = job.model_copy(update={"spec": job.spec.model_copy(update={"nodes": 2})})
    assert smaller.spec_hash == job.spec_hash
    statuses = {i: training(job, i) for i in range(4)}
    plan = plan_for(smaller, pods(job, range(4)), statuses=statuses)
    assert plan.status.attempt == 3
    assert members(plan) == {0, 1}
    assert orders(plan) == {"digits-0": "3:0-1:save", "digits-1": "3:0-1:save"}
    deleted = {a.name for a in plan.actions if isinstance(a, DeletePod)}
    assert deleted == {"digits-2", "digits-3"}


def test_higher_spec_nodes_creates_pods_that_wait_for_the_next_growth() -> None:
    job = elastic_job(2)
    larger = job.model_copy(update={"spec": job.spec.model_copy(update={"nodes": 3})})
    statuses = {i: training(job, i) for i in range(2)}
    plan = plan_for(larger, pods(job, range(2)), statuses=statuses)
    assert plan.status.attempt == 2
    created = [a for a in plan.actions if isinstance(a, CreatePod)]
    assert [a.name for a in created] == ["digits-2"]
    annotations = created[0].manifest["metadata"]["annotations"]
    assert annotations["ddp-trainer.dev/attempt"] == "2:0-1"
    assert plan.status.ready == "2/3"


# --- Results --------------------------------------------------------------------------------------


def test_resize_is_complete_with_the_first_update_of_all_members() -> None:
    job = elastic_job(4, members="0,2")
    plan = grown_at(job, 300)
    job = starting(with_status(job, **dict(plan.status)))
    statuses = {i: training(job, i) for i in range(4)}
    done = plan_for(job, pods(job, range(4)), statuses=statuses, now=after(302.5))
    assert done.status.last_resize is not None
    assert done.status.last_resize.milliseconds == 2500
    texts = [event.message for event in done.events if event.reason == "Resized"]
    assert texts == ["attempt 3 trains on 4 instead of 2 nodes, 2.5 s after the decision"]


def test_job_is_complete_when_its_members_are_regardless_of_other_pods() -> None:
    job = elastic_job(3, members="0,2")
    done = {i: agent_status(i, attempt=2, phase="Succeeded") for i in (0, 2)}
    found = [
        pod(job, i, phase="Succeeded", ready=False) if i != 1 else pod(job, 1, ready=False)
        for i in range(3)
    ]
    plan = plan_for(job, found, statuses=done | {1: waiting(job, 1)})
    summary = plan.status.condition(ConditionType.SUCCEEDED)
    assert summary is not None
    assert summary.status == "True"


def test_failed_pod_of_a_node_that_is_no_member_is_replaced() -> None:
    job = elastic_job(2, members="0")
    found = [pod(job, 0), pod(job, 1, phase="Failed", ready=False)]
    plan = plan_for(job, found, statuses={0: training(job, 0)})
    assert plan.status.attempt == 2
    assert [a.name for a in plan.actions if isinstance(a, DeletePod)] == ["digits-1"]
    assert [a.name for a in plan.actions if isinstance(a, CreatePod)] == ["digits-1"]


STATES = st.sampled_from(["gone", "pending", "waits", "trains", "failed", "deleted", "drained"])


@given(
    st.integers(1, 5),
    st.integers(1, 5),
    st.lists(STATES, min_size=5, max_size=5),
    st.sets(st.integers(0, 4), min_size=1),
    st.integers(0, 999),
    st.booleans(),
)
def test_members_are_always_within_spec_nodes_and_at_least_min_nodes(  # noqa: PLR0917
    nodes: int, minimum: int, states: list[str], current: set[int], seconds: int, formed: bool
) -> None:
    minimum, current = min(minimum, nodes), {i for i in current if i < nodes} or {0}
    job = elastic_job(nodes, minimum, members=node_ranges.to_text(current))
    job = job if formed else starting(job)
    found, statuses = [], {}
    for index, state in enumerate(states[:nodes]):
        if state == "gone":
            continue
        phase = {"pending": "Pending", "failed": "Failed"}.get(state, "Running")
        gone: dict[str, dict[str, Any]]
        gone = {"deleted": {"deleting": True}, "drained": {"deleting": True, "disruption": "X"}}
        found.append(pod(job, index, phase=phase, ready=state == "trains", **gone.get(state, {})))
        if state == "waits":
            statuses[index] = waiting(job, index)
        if state == "trains":
            statuses[index] = training(job, index)
    plan = plan_for(job, found, statuses=statuses, now=NOW + timedelta(seconds=seconds))
    assert plan.status.attempt in {2, 3}
    assert members(plan) <= set(range(nodes))
    if plan.status.attempt == 3:
        # A user may have raised the minimum while fewer nodes train.
        assert len(members(plan)) >= minimum or members(plan) > current
    else:
        assert members(plan) == current
