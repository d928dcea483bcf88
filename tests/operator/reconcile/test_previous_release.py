"""Tests that this release continues a job of the previous release without a restart."""

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ddp_operator.api.job import DDPJob, parse_job
from ddp_operator.builders.service import build_service
from ddp_operator.reconcile.decide import decide
from ddp_operator.reconcile.pod_view import view_pod
from ddp_operator.reconcile.world import World
from ddp_wire.messages import AgentPhase, AgentStatus
from tests.operator.support import DEFAULTS, reason, to_wire

RECORDED = Path(__file__).parent / "recorded" / "running_job.json"
"""A job in its third attempt with its pods, as the operator of commit c9c9f86 wrote them."""


@pytest.fixture(scope="module")
def recorded() -> Any:
    return json.loads(RECORDED.read_text(encoding="utf-8"))


def observe(recorded: Any, *, seconds: float = 0.0) -> World:
    """Return what the operator observes after an upgrade, this long after the record."""
    job: DDPJob = parse_job(recorded["job"])
    return World(
        job,
        datetime.fromisoformat(recorded["now"]) + timedelta(seconds=seconds),
        tuple(view_pod(pod) for pod in recorded["pods"]),
        children={"Service": [build_service(job)]},
        agent_statuses={
            uid: AgentStatus.model_validate(status) for uid, status in recorded["agents"].items()
        },
    )


def test_recorded_job_of_the_previous_release_trains_on_all_nodes(recorded: Any) -> None:
    world = observe(recorded)
    assert len(world.pods) == len(world.agent_statuses) == world.job.spec.nodes
    statuses = world.agent_statuses.values()
    assert {one.phase for one in statuses} == {AgentPhase.TRAINING}
    assert {one.attempt for one in statuses} == {world.job.status.attempt}


def test_status_of_the_previous_release_is_parsed_without_losing_a_field(recorded: Any) -> None:
    expected = json.loads(json.dumps(recorded["job"]["status"]))
    recovery = expected["lastRecovery"]
    recovery["orderedMilliseconds"] = recovery.pop("toldMilliseconds")  # Renamed since.
    expected |= {"attemptsWithoutProgress": 0, "resizes": 0, "departures": []}  # New since.
    assert to_wire(parse_job(recorded["job"]).status) == expected


def test_unchanged_spec_keeps_the_hash_of_the_previous_release(recorded: Any) -> None:
    """Another hash would count as a changed spec and start a new attempt."""
    job = parse_job(recorded["job"])
    assert job.spec_hash == job.status.attempt_spec_hash
    assert {pod.spec_hash for pod in observe(recorded).pods} == {job.spec_hash}


@pytest.mark.parametrize("seconds", [0.0, 3600.0])
def test_running_job_of_the_previous_release_goes_on_without_a_restart(
    recorded: Any, seconds: float
) -> None:
    world = observe(recorded, seconds=seconds)
    plan = decide(world, DEFAULTS)
    before = world.job.status
    assert plan.actions == ()
    assert reason(plan.status) == "Running"
    assert plan.status.attempt == before.attempt
    assert (plan.status.restarts, plan.status.infrastructure_restarts) == (1, 1)
    assert plan.status.last_failure == before.last_failure
    assert plan.status.last_recovery == before.last_recovery
    assert plan.status.attempts == before.attempts


def test_job_of_the_previous_release_starts_its_next_attempt_in_place(recorded: Any) -> None:
    """The recorded pods run the attempts of this release."""
    failed = json.loads(json.dumps(recorded))
    uid, status = next(iter(failed["agents"].items()))
    failure = {"attempt": 3, "at": status["since"] + 20, "rank": 0, "signal": "SIGKILL"}
    failed["agents"][uid] = {**status, "phase": "Failed", "failure": failure}
    plan = decide(observe(failed), DEFAULTS)
    assert plan.status.attempt == 4
    assert {type(action).__name__ for action in plan.actions} == {"SetAttempt"}
