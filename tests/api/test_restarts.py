"""The operator is not there when something happens, or ends right after it: nothing is lost."""

from datetime import timedelta
from unittest.mock import AsyncMock, patch

import pytest

from tests.api.bench import Bench, Kill
from tests.api.crash import Run
from tests.api.invariants import violations
from tests.api.stage import Stage
from tests.operator.fake_cluster import Killed
from tests.scenarios.flows import NAME, Flow, fall
from tests.scenarios.pods import Script

pytestmark = pytest.mark.api


def named(pods: list[dict[str, object]]) -> dict[str, object]:
    """Uids of pods by name."""
    metadata = [pod["metadata"] for pod in pods]
    return {m["name"]: m["uid"] for m in metadata if isinstance(m, dict)}


async def test_case_02_a_job_created_while_the_operator_is_down_is_picked_up_once(
    bench: Bench, namespace: str
) -> None:
    stage = Stage(bench, namespace)
    await stage.apply()
    await stage.operator().settle()
    second = stage.operator()
    await second.settle()
    assert second.writes == 0
    history = await bench.history(namespace)
    created = [r.resource for r in history.requests if r.verb == "create"]
    assert sorted(created) == ["events", "pods", "pods", "services"]
    assert violations(history) == []


async def test_case_03_a_pod_that_fails_before_the_operator_dies_is_counted_once(
    bench: Bench, namespace: str
) -> None:
    stage = Stage(bench, namespace, Script(dies=frozenset({(1, 1)})))
    await stage.apply()
    await stage.until("Running")
    await stage.second()
    dying = stage.operator(Kill(1, after=False))
    with pytest.raises(Killed):
        await dying.settle()
    status = await stage.status()
    assert (status["attempt"], status["infrastructureRestarts"]) == (1, 0)
    await stage.until("Completed")
    status = await stage.status()
    assert (status["attempt"], status["infrastructureRestarts"], status["restarts"]) == (2, 1, 0)
    assert [a["number"] for a in status["attempts"]] == [1, 2]
    assert violations(await bench.history(namespace)) == []


async def test_case_04_a_restart_that_deleted_and_did_not_create_goes_on_with_its_attempt(
    bench: Bench, namespace: str
) -> None:
    stage = Stage(bench, namespace, Script(dies=frozenset({(1, 1)})))
    await stage.apply()
    await stage.until("Running")
    await stage.second()
    with (
        patch.object(bench.cluster, "create", AsyncMock(side_effect=Killed)),
        pytest.raises(Killed),
    ):
        await stage.operator().settle()
    assert list(named(await stage.pods())) == [f"{NAME}-0"]
    assert (await stage.status())["attempt"] == 2
    await stage.until("Completed")
    status = await stage.status()
    assert (status["attempt"], status["infrastructureRestarts"]) == (2, 1)
    assert violations(await bench.history(namespace)) == []


async def test_case_38_what_is_edited_while_the_operator_is_down_applies_without_a_restart(
    bench: Bench, namespace: str
) -> None:
    stage = Stage(bench, namespace)
    await stage.apply()
    await stage.until("Running")
    before = named(await stage.pods())
    await stage.edit(maxRestarts=7, ttlSecondsAfterFinished=60, activeDeadlineSeconds=3600)
    await stage.operator().settle()
    status = await stage.status()
    assert (status["attempt"], status["observedGeneration"]) == (1, 2)
    assert named(await stage.pods()) == before
    await stage.edit(suspend=True)
    await stage.until("Suspended")
    assert (await stage.status())["attempt"] == 1
    await stage.edit(suspend=False)
    operator = await stage.until("Completed")
    assert (await stage.status())["freeRestarts"] == 1
    stage.now += timedelta(seconds=60)
    await operator.settle()
    await stage.vanishes()
    assert violations(await bench.history(namespace)) == []


BOUNDARIES = {
    "none allowed, none needed": Flow(Script(), 1, 0, "Completed", {"maxRestarts": 0}),
    "none allowed, one needed": Flow(
        Script(falls={(1, 1): fall()}), 1, 0, "Failed", {"maxRestarts": 0}, ttl=False
    ),
    "two allowed, two needed": Flow(
        Script(falls={(1, 1): fall(), (2, 0): fall(2)}), 3, 2, "Completed", {"maxRestarts": 2}
    ),
    "two allowed, three needed": Flow(
        Script(falls={(n, 1): fall(n) for n in (1, 2, 3)}),
        3,
        2,
        "Failed",
        {"maxRestarts": 2},
        ttl=False,
    ),
}


@pytest.mark.parametrize("flow", BOUNDARIES.values(), ids=BOUNDARIES.keys())
async def test_case_60_max_restarts_is_an_exact_boundary(
    bench: Bench, namespace: str, flow: Flow
) -> None:
    outcome = await Run(bench, flow, f"{namespace}-run", None).outcome()
    assert outcome.problems == []


async def test_case_60_a_deadline_that_passes_while_the_operator_is_down_is_enforced_after(
    bench: Bench, namespace: str
) -> None:
    stage = Stage(bench, namespace)
    await stage.apply(activeDeadlineSeconds=100)
    await stage.until("Running")
    stage.now += timedelta(hours=1)
    await stage.operator().settle()
    reason, message = await stage.summary()
    assert (reason, message) == ("Failed", "active for longer than activeDeadlineSeconds (100)")
    await stage.second()
    assert not await stage.lives()
    assert violations(await bench.history(namespace)) == []
