"""Properties of every decision, for generated states of a job and its pods."""

import contextlib
import dataclasses
import itertools
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from ddp_operator.api.job import DDPJob, parse_job
from ddp_operator.api.status import (
    ConditionType,
    DDPJobStatus,
    ProgressStatus,
    QueueStatus,
    StrikeStatus,
)
from ddp_operator.builders.service import build_service
from ddp_operator.reconcile.decide import decide
from ddp_operator.reconcile.lifecycle import is_finished
from ddp_operator.reconcile.plan import CreatePod, DeleteJob, DeletePod, SetAttempt
from ddp_operator.reconcile.pod_view import PodView, Termination
from ddp_operator.reconcile.world import World
from ddp_wire.messages import AgentStatus
from tests.operator.schema_tools import server_findings
from tests.operator.support import (
    DEFAULTS,
    NOW,
    active_job,
    after,
    all_pods,
    condition,
    failed_status,
    job_manifest,
    last_failure,
    pod,
    to_wire,
    with_status,
    world,
)

ATTEMPTS = st.integers(0, 3)
MOMENTS = st.sampled_from([-100, -61, -5, -1.5, 0, 0.25, 1, 4, 30, 99]).map(after)
NAN, INF = float("nan"), float("inf")


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


FAILURES: list[dict[str, Any]] = [
    {},
    {"message": "ValueError: no", "traceback": "Traceback\nValueError: no"},
    {"message": "peer gone", "secondary": True},
    {"message": "peer gone", "secondary": True, "at": after(-60).timestamp()},
    {"exit_code": 2, "message": "no data"},
    {"exit_code": 85},
    {"signal": "SIGKILL"},
    {"rank": None, "message": "torchrun: no"},
]
CONTENTS: list[dict[str, Any]] = [
    {},
    {"progress": {"step": 0}},
    {"progress": {"step": 7, "totalSteps": 9, "loss": 0.5, "metrics": {"a": 1.0}}},
    {"progress": {"step": 8, "totalSteps": 9, "samplesPerSecond": 1e12, "etaSeconds": 0}},
    {"progress": {"step": 8, "loss": NAN, "samplesPerSecond": NAN, "metrics": {"a": NAN}}},
    {"progress": {"step": 8, "loss": INF, "samplesPerSecond": INF, "metrics": {"a": INF}}},
    {"checkpoint": {"step": 5, "path": "/checkpoints/a", "at": after(-3).timestamp()}},
    {"ranks": [{"resumedFrom": None}]},
    {"ranks": [{"resumedFrom": 5}]},
]


def _statuses() -> list[AgentStatus]:
    """Return every kind of agent status except those that the wire contract refuses."""
    found = []
    phases = ["Waiting", "Starting", "Training", "Succeeded", "Failed", "Preempted"]
    for attempt, phase in itertools.product([1, 2, 3], phases):
        for content in CONTENTS:
            beat = {"attempt": attempt, "rank": 0, "localRank": 0, "phase": "Training", "at": 0}
            ranks = [beat | r for r in content.get("ranks", [])]
            fields = {"nodeIndex": 0, "attempt": attempt, "phase": phase, "since": 0}
            with contextlib.suppress(ValidationError):
                found.append(AgentStatus.model_validate(fields | content | {"ranks": ranks}))
    for attempt, failure in itertools.product([1, 2, 3], FAILURES):
        found.append(failed_status(0, attempt=attempt, **failure))
    return found


AGENT_STATUSES = {
    attempt: [r for r in _statuses() if r.attempt == attempt] for attempt in (1, 2, 3)
}


def every(**choices: list[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy for any combination by one draw, because many draws make examples slow."""
    rows = [dict(zip(choices, row, strict=True)) for row in itertools.product(*choices.values())]
    return st.sampled_from(rows)


SPECS = every(
    nodes=[2, 1, 3],
    suspend=[False, False, True],
    maxRestarts=[3, 0, 1],
    maxInfrastructureRestarts=[50, 0],
    cleanPodPolicy=["None", "All"],
    limits=[
        {},
        {"checkpoint": {"claimName": "shared"}, "restartWindowSeconds": 60},
        {"activeDeadlineSeconds": 60},
        {"startupDeadlineSeconds": 30},
        {"ttlSecondsAfterFinished": 0},
        {"ttlSecondsAfterFinished": 60},
    ],
)
STATUSES = every(
    attempt=[1, 2, 3],
    restarts=[0, 1, 3],
    attempt_spec_hash=["current", "current", None, "0" * 16],
    start_time=[NOW, None],
    attempt_start_time=[NOW, None],
    completion_time=[None, NOW],
)
WRITTEN = every(
    resumed_from_step=[None, 5],
    stalled_attempts=[0, 1, 2],
    attempt_start_step=[None, 5],
    queue=[None, QueueStatus(since=NOW), QueueStatus(attempt_seconds=5, job_seconds=40)],
    strikes=[[], [StrikeStatus(node="machine-1", count=1, last_time=NOW)]],
    last_failure=[None, last_failure(1), last_failure(2)],
    progress=[None, ProgressStatus(step=7, time=NOW), ProgressStatus(step=8, time=None)],
)
CONDITIONS = every(
    Rendezvoused=["True", "False", None],
    PodsReady=[None, "True"],
    Succeeded=["Unknown", None, "Unknown", "True", "False"],
    Suspended=[None, "True", "False"],
)
PODS = every(
    phase=["Running", "Pending", "Succeeded", "Failed", "Running", "Unknown"],
    ready=[True, False],
    attempt=["current", "current", "1", "3", "", "stop"],
    spec_hash=["current", "current", "0" * 16],
    deleting=[False, False, True],
    disruption=[None, None, "EvictionByEvictionAPI", "DeletionByPodGC", "Of" + "x" * 2000],
)
ENDS = every(
    exit_code=[0, 1, 2, 85, 137], reason=["", "OOMKilled"], at=[None, NOW], final=[True, False]
)
OBSERVED = every(
    now=[after(s) for s in (0, 1, 4.5, 5, 29, 61, -100)],
    service=[True, False],
    blocked=[None, None, "exceeded quota"],
    checkpoint_owner=[None, None, None, "other"],
)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Draw mostly possible states, and sometimes impossible states."""
    spec = draw(SPECS)
    job = parse_job(
        job_manifest(**{k: v for k, v in spec.items() if k != "limits"}, **spec["limits"])
    )
    fields = draw(STATUSES) | draw(WRITTEN)
    if fields["attempt_spec_hash"] == "current":
        fields["attempt_spec_hash"] = job.spec_hash
    set_ones = {k: v for k, v in draw(CONDITIONS).items() if v is not None}
    conditions = [condition(ConditionType(k), v) for k, v in set_ones.items()]
    job = with_status(job, conditions=conditions, **fields)
    pods, statuses = [], {}
    for index in range(draw(st.integers(0, spec["nodes"] + 1))):
        view, status = _pod(draw, job, index)
        pods.append(view)
        if status is not None:
            statuses[view.uid] = status
    observed = draw(OBSERVED)
    return World(
        job,
        observed["now"],
        tuple(pods),
        children={"Service": [build_service(job)]} if observed["service"] else {},
        agent_statuses=statuses,
        blocked=observed["blocked"],
        checkpoint_owner=observed["checkpoint_owner"] if job.spec.checkpoint else None,
    )


def _pod(draw: st.DrawFn, job: DDPJob, index: int) -> tuple[PodView, AgentStatus | None]:
    fields = draw(PODS)
    if fields["attempt"] == "current":
        fields = fields | {"attempt": str(job.status.attempt)}
    if fields["spec_hash"] == "current":
        fields = fields | {"spec_hash": job.spec_hash}
    of = draw(st.sampled_from([job.status.attempt, job.status.attempt, 1, 3]))
    status = draw(st.none() | st.sampled_from(AGENT_STATUSES[of]))
    if fields["phase"] in {"Succeeded", "Failed"}:
        end = draw(st.none() | ENDS)
        if end is not None:
            fields = fields | {
                "termination": Termination(**(end | {"final": status if end["final"] else None}))
            }
    return pod(job, index, **fields), status


def written(seen: World, status: DDPJobStatus) -> World:
    """Return the same observed state after the API server has stored the status."""
    stored = DDPJobStatus.model_validate(to_wire(status))
    job = seen.job.model_copy(update={"status": stored})
    return dataclasses.replace(seen, job=job)


@settings(max_examples=150)
@given(worlds())
def test_any_observed_state_gives_a_status_that_the_api_server_accepts(seen: World) -> None:
    plan = decide(seen, DEFAULTS)
    assert server_findings("status", to_wire(plan.status)) == []
    assert plan.requeue_seconds is None or plan.requeue_seconds >= 0


@settings(max_examples=150)
@given(worlds())
def test_status_converges_while_the_observed_state_does_not_change(seen: World) -> None:
    """A reconcile may write facts that the previous reconcile did not have, until none is left."""
    for _ in range(12):
        plan = decide(seen, DEFAULTS)
        stored = written(seen, plan.status)
        if stored.job.status == seen.job.status:
            break
        seen = stored
    at_rest = decide(seen, DEFAULTS)
    assert at_rest.status == seen.job.status
    assert at_rest.events == ()


def test_failure_is_recorded_by_one_reconcile_and_handled_within_two() -> None:
    job = active_job()
    seen = world(job, all_pods(job), statuses={1: failed_status(1)})
    first = written(seen, decide(seen, DEFAULTS).status)
    second = written(first, decide(first, DEFAULTS).status)
    assert decide(second, DEFAULTS).status == second.job.status
    assert second.job.status.attempt == 2


@given(worlds())
def test_decision_depends_only_on_the_observed_state(seen: World) -> None:
    assert decide(seen, DEFAULTS) == decide(seen, DEFAULTS)


@settings(max_examples=150)
@given(worlds())
@example(world(active_job(), ()))
def test_reconcile_increments_counts_by_at_most_one(seen: World) -> None:
    old, new = seen.job.status, decide(seen, DEFAULTS).status
    assert new.attempt - old.attempt in {0, 1}
    counts = ("restarts", "infrastructure_restarts", "free_restarts")
    spent = [getattr(new, name) - getattr(old, name) for name in counts]
    assert set(spent) <= {0, 1}
    assert sum(spent) <= new.attempt - old.attempt
    if new.restarts > old.restarts and seen.job.spec.restart_window_seconds is None:
        assert new.restarts <= max(old.restarts, seen.job.spec.max_restarts)
    if new.infrastructure_restarts > old.infrastructure_restarts:
        assert new.infrastructure_restarts <= seen.job.spec.max_infrastructure_restarts


@settings(max_examples=150)
@given(worlds())
def test_each_action_concerns_an_existing_pod_and_no_pod_has_two_actions(seen: World) -> None:
    plan = decide(seen, DEFAULTS)
    known = {p.uid: p for p in seen.pods}
    for action in plan.actions:
        if isinstance(action, DeletePod | SetAttempt):
            assert known[action.uid].name == action.name
    ordered = [a.name for a in plan.actions if isinstance(a, SetAttempt)]
    deleted = [a.name for a in plan.actions if isinstance(a, DeletePod)]
    created = [a.manifest["metadata"]["name"] for a in plan.actions if isinstance(a, CreatePod)]
    for acted in (ordered, deleted, created):
        assert len(acted) == len(set(acted))
    assert not set(ordered) & (set(deleted) | set(created))
    freed = {p.name for p in seen.pods} - set(deleted)
    assert not set(created) & freed, "a pod is created only where its name is or becomes free"


@settings(max_examples=150)
@given(worlds())
def test_living_pod_is_never_replaced_before_it_is_gone(seen: World) -> None:
    plan = decide(seen, DEFAULTS)
    living = {p.name for p in seen.pods if not p.terminal}
    created = {a.manifest["metadata"]["name"] for a in plan.actions if isinstance(a, CreatePod)}
    assert not created & living


@settings(max_examples=150)
@given(worlds())
def test_finished_or_suspended_job_creates_nothing_and_only_stops_pods(
    seen: World,
) -> None:
    plan = decide(seen, DEFAULTS)
    if not is_finished(plan.status) and not seen.job.spec.suspend:
        assert not [a for a in plan.actions if isinstance(a, DeleteJob)]
        return
    for action in plan.actions:
        assert isinstance(action, DeletePod | SetAttempt | DeleteJob)
        if isinstance(action, SetAttempt):
            assert action.value == "stop"
