"""Tests of events that happen while the operator is down or right before it is killed."""

from datetime import timedelta
from unittest.mock import AsyncMock, patch

import pytest

from tests.api.crash import FlowRun
from tests.api.in_process_operator import Kill, OperatorEnvironment
from tests.api.invariants import violations
from tests.api.simulated_job import SimulatedJob
from tests.operator.fake_cluster import Killed
from tests.scenarios.flows import NAME, Flow, rank_failure
from tests.scenarios.pods import Script

pytestmark = pytest.mark.api


def named(pods: list[dict[str, object]]) -> dict[str, object]:
    """Return the uids of pods by name."""
    metadata = [pod["metadata"] for pod in pods]
    return {m["name"]: m["uid"] for m in metadata if isinstance(m, dict)}


async def test_job_created_while_the_operator_was_down_starts_exactly_once(
    environment: OperatorEnvironment, namespace: str
) -> None:
    simulated = SimulatedJob(environment, namespace)
    await simulated.apply()
    await simulated.new_operator().reconcile_until_idle()
    second = simulated.new_operator()
    await second.reconcile_until_idle()
    assert second.writes == 0
    history = await environment.history(namespace)
    created = [r.resource for r in history.requests if r.verb == "create"]
    assert sorted(created) == ["events", "networkpolicies", "pods", "pods", "services"]
    assert violations(history) == []


async def test_pod_failure_before_a_kill_of_the_operator_is_counted_once(
    environment: OperatorEnvironment, namespace: str
) -> None:
    simulated = SimulatedJob(environment, namespace, Script(kills=frozenset({(1, 1)})))
    await simulated.apply()
    await simulated.run_until("Running")
    await simulated.advance()
    dying = simulated.new_operator(Kill(1, after=False))
    with pytest.raises(Killed):
        await dying.reconcile_until_idle()
    status = await simulated.status()
    assert (status["attempt"], status["infrastructureRestarts"]) == (1, 0)
    await simulated.run_until("Completed")
    status = await simulated.status()
    assert (status["attempt"], status["infrastructureRestarts"], status["restarts"]) == (2, 1, 0)
    assert [a["number"] for a in status["attempts"]] == [1, 2]
    assert violations(await environment.history(namespace)) == []


async def test_operator_killed_between_delete_and_create_continues_the_attempt(
    environment: OperatorEnvironment, namespace: str
) -> None:
    simulated = SimulatedJob(environment, namespace, Script(kills=frozenset({(1, 1)})))
    await simulated.apply()
    await simulated.run_until("Running")
    await simulated.advance()
    with (
        patch.object(environment.cluster, "create", AsyncMock(side_effect=Killed)),
        pytest.raises(Killed),
    ):
        await simulated.new_operator().reconcile_until_idle()
    assert list(named(await simulated.pods())) == [f"{NAME}-0"]
    assert (await simulated.status())["attempt"] == 2
    await simulated.run_until("Completed")
    status = await simulated.status()
    assert (status["attempt"], status["infrastructureRestarts"]) == (2, 1)
    assert violations(await environment.history(namespace)) == []


async def test_edits_made_while_the_operator_is_down_apply_without_a_restart(
    environment: OperatorEnvironment, namespace: str
) -> None:
    simulated = SimulatedJob(environment, namespace)
    await simulated.apply()
    await simulated.run_until("Running")
    before = named(await simulated.pods())
    await simulated.edit(maxRestarts=7, ttlSecondsAfterFinished=60, activeDeadlineSeconds=3600)
    await simulated.new_operator().reconcile_until_idle()
    status = await simulated.status()
    assert (status["attempt"], status["observedGeneration"]) == (1, 2)
    assert named(await simulated.pods()) == before
    await simulated.edit(suspend=True)
    await simulated.run_until("Suspended")
    assert (await simulated.status())["attempt"] == 1
    await simulated.edit(suspend=False)
    operator = await simulated.run_until("Completed")
    assert (await simulated.status())["freeRestarts"] == 1
    simulated.now += timedelta(seconds=60)
    await operator.reconcile_until_idle()
    await simulated.wait_until_deleted()
    assert violations(await environment.history(namespace)) == []


BOUNDARIES = {
    "zero-allowed-zero-needed": Flow(Script(), 1, 0, "Completed", {"maxRestarts": 0}),
    "zero-allowed-one-needed": Flow(
        Script(failures={(1, 1): rank_failure()}), 1, 0, "Failed", {"maxRestarts": 0}, ttl=False
    ),
    "two-allowed-two-needed": Flow(
        Script(failures={(1, 1): rank_failure(), (2, 0): rank_failure(2)}),
        3,
        2,
        "Completed",
        {"maxRestarts": 2},
    ),
    "two-allowed-three-needed": Flow(
        Script(failures={(n, 1): rank_failure(n) for n in (1, 2, 3)}),
        3,
        2,
        "Failed",
        {"maxRestarts": 2},
        ttl=False,
    ),
}


@pytest.mark.parametrize("flow", BOUNDARIES.values(), ids=BOUNDARIES.keys())
async def test_max_restarts_is_an_exact_limit(
    environment: OperatorEnvironment, namespace: str, flow: Flow
) -> None:
    outcome = await FlowRun(environment, flow, f"{namespace}-run", None).outcome()
    assert outcome.problems == []


async def test_operator_enforces_a_deadline_that_passed_while_it_was_down(
    environment: OperatorEnvironment, namespace: str
) -> None:
    simulated = SimulatedJob(environment, namespace)
    await simulated.apply(activeDeadlineSeconds=100)
    await simulated.run_until("Running")
    simulated.now += timedelta(hours=1)
    await simulated.new_operator().reconcile_until_idle()
    reason, message = await simulated.summary()
    assert (reason, message) == (
        "Failed",
        "the job was active for longer than activeDeadlineSeconds (100)",
    )
    await simulated.advance()
    assert not await simulated.has_active_pods()
    assert violations(await environment.history(namespace)) == []
