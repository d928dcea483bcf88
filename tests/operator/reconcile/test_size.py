"""Tests that the work of one decision grows linearly with the number of pods."""

import cProfile
import pstats
from collections.abc import Callable

import pytest

from ddp_operator.api.job import DDPJob
from ddp_operator.reconcile.decide import decide
from ddp_operator.reconcile.plan import CreatePod
from ddp_operator.reconcile.world import World
from ddp_wire.messages import HungRank, RankInspection
from tests.operator.support import (
    DEFAULTS,
    active_job,
    agent_status,
    all_pods,
    failed_status,
    new_job,
    only,
    world,
)

FEW, MANY = 100, 1600


class CountedInt(int):
    """Integer whose comparisons count as function calls, also within `max` or `sorted`."""

    def __lt__(self, other: object) -> bool:
        return int(self) < int(other)  # type: ignore[call-overload,no-any-return]

    def __gt__(self, other: object) -> bool:
        return int(self) > int(other)  # type: ignore[call-overload,no-any-return]

    def __eq__(self, other: object) -> bool:
        return int(self) == other

    def __hash__(self) -> int:
        return hash(int(self))


class CountedFloat(float):
    """Float whose comparisons count as function calls, for durations."""

    def __lt__(self, other: object) -> bool:
        return float(self) < float(other)  # type: ignore[arg-type]

    def __gt__(self, other: object) -> bool:
        return float(self) > float(other)  # type: ignore[arg-type]


def starting(nodes: int) -> World:
    return world(new_job(nodes=nodes))


def half_created(nodes: int) -> World:
    job = active_job(nodes=nodes, formed=False)
    return world(job, [one for one in all_pods(job) if one.index % 2])


def training(nodes: int) -> World:
    job = active_job(nodes=nodes)
    return world(job, all_pods(job))


def failing(nodes: int) -> World:
    job: DDPJob = active_job(nodes=nodes)
    return world(job, all_pods(job), statuses={0: failed_status(0)})


def hung(index: int) -> HungRank:
    """Return a rank that waits for rank 0, without validation, which would convert its numbers."""
    waiting = RankInspection(waits=index > 0)
    inspection = waiting.model_copy(update={"number": CountedInt(7 - (index == 0))})
    rank = HungRank(rank=index, step=9, activity="backward", seconds=31.0)
    counted = {"step": CountedInt(9), "seconds": CountedFloat(31.0), "inspection": inspection}
    return rank.model_copy(update=counted)


def hanging(nodes: int) -> World:
    job = active_job(nodes=nodes)
    empty = {index: agent_status(index) for index in range(nodes)}
    found = {i: one.model_copy(update={"hang": [hung(i)]}) for i, one in empty.items()}
    return world(job, all_pods(job), statuses=found)


def calls(seen: World) -> int:
    """Return the number of function calls of one decision, which is a measure without noise."""
    profile = cProfile.Profile()
    profile.runcall(decide, seen, DEFAULTS)
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


@pytest.mark.parametrize("state", [starting, half_created, training, failing, hanging])
def test_time_of_a_decision_is_linear_in_the_number_of_pods(state: Callable[[int], World]) -> None:
    few, many = calls(state(FEW)), calls(state(MANY))
    assert many < 1.2 * few * MANY / FEW
    assert many < (200 if state is hanging else 70) * MANY, (
        "a decision about one pod must stay cheap"
    )


@pytest.mark.slow
def test_plan_of_9999_pods_builds_manifests_only_when_it_is_executed() -> None:
    plan = decide(starting(9999), DEFAULTS)
    (first, *_) = created = only(plan.actions, CreatePod)
    assert len(created) == 9999
    assert first.manifest["metadata"]["name"] == first.name == "digits-0"
