"""Jobs under a stand-in for Kueue, in memory: random disturbances, and the ends of groups."""

from typing import Any

import pytest

from ddp_operator.builders.gangs.kueue import RETRIABLE
from tests.operator.kueue_support import KueueRun
from tests.scenarios.kueue_runs import SPECS
from tests.scenarios.pods import EndContainer

FIXED = "fixed size"
GROUP_1, GROUP_2 = "digits-1-6f1c4", "digits-2-6f1c4"


def marked(run: KueueRun) -> list[str]:
    """Return the pods that end their group."""
    pods = run.cluster.pods()
    return [p["metadata"]["name"] for p in pods if RETRIABLE in p["metadata"]["annotations"]]


def admitted(run: KueueRun) -> set[str]:
    return {name for name, one in run.kueue.workloads.items() if one.quota}


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("writes_per_life", [0, 3])
@pytest.mark.parametrize(
    ("seed", "disturbances"),
    [(1, 10), *(pytest.param(seed, 100, marks=pytest.mark.sweep) for seed in range(2, 6))],
)
async def test_no_disturbance_makes_kueue_correct_the_operator(
    name: str, writes_per_life: int, seed: int, disturbances: int
) -> None:
    run = KueueRun(name, seed, disturbances, writes_per_life=writes_per_life)
    await run.play(seconds=200 * disturbances)
    assert sum(run.disturber.done.values()) == disturbances
    assert run.kueue.faults == []
    assert run.summary().startswith("Completed")


@pytest.mark.parametrize("writes_per_life", [0, 1])
async def test_suspension_gives_the_quota_back_and_resumption_takes_a_new_group(
    writes_per_life: int,
) -> None:
    run = KueueRun(FIXED, writes_per_life=writes_per_life)
    await run.advance(5)
    assert run.groups() == {GROUP_1}
    run.edit(suspend=True)
    await run.advance(5)
    assert run.cluster.pods() == []
    await run.advance(1)
    assert admitted(run) == set()
    run.edit(suspend=False)
    await run.advance(5)
    assert run.groups() == {GROUP_2}
    assert admitted(run) == {GROUP_2}
    assert await run.play(seconds=60)
    assert run.kueue.faults == []


@pytest.mark.parametrize("writes_per_life", [0, 1])
async def test_new_size_takes_a_new_group(writes_per_life: int) -> None:
    run = KueueRun(FIXED, writes_per_life=writes_per_life, quota=4)
    await run.advance(5)
    run.edit(nodes=4)
    await run.advance(8)
    assert run.groups() == {GROUP_2}
    assert len(run.cluster.living()) == 4
    await run.play(seconds=60)
    assert run.kueue.faults == []


@pytest.mark.parametrize("quota", [8, 2])
async def test_suspension_of_a_gang_that_waits_leaves_no_pod_behind(quota: int) -> None:
    """Kueue keeps a pod that was deleted behind its gate until its Workload is deleted."""
    run = KueueRun(FIXED, quota=quota)
    run.kueue.stopped = True
    await run.advance(5)
    run.edit(suspend=True)
    await run.advance(5)
    assert run.cluster.pods() == []
    assert run.cluster.writes.count(f"delete Workload {GROUP_1}") == 1
    run.kueue.stopped, run.kueue.quota = False, 8
    run.edit(suspend=False)
    await run.play(seconds=60)
    assert run.kueue.faults == []


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "waiting"])
@pytest.mark.parametrize(
    ("recreated", "writes_per_life"), [(False, 0), (False, 2), (True, 0), (True, 7)]
)
async def test_deleted_job_leaves_no_pod_and_no_quota_behind(
    stopped: bool, recreated: bool, writes_per_life: int
) -> None:
    """The garbage collector deletes the pods, and Kueue would keep them for ever."""
    run = KueueRun(FIXED, writes_per_life=writes_per_life)
    run.kueue.stopped = stopped
    await run.advance(5)
    run.delete_job(recreate_as="0" * 36 if recreated else None)
    await run.advance(8)
    assert GROUP_1 not in run.groups() | admitted(run)
    run.kueue.stopped = False
    await run.advance(5)
    assert admitted(run) == ({"digits-1-00000"} if recreated else set())
    assert len(run.cluster.pods()) == (3 if recreated else 0)


@pytest.mark.parametrize("policy", ["None", "All"])
async def test_failed_job_gives_its_quota_back(policy: str) -> None:
    spec: dict[str, Any] = {"maxInfrastructureRestarts": 0, "cleanPodPolicy": policy}
    run = KueueRun(FIXED, **spec, ttlSecondsAfterFinished=None)
    await run.advance(5)
    first, *_ = run.cluster.pods()
    run.disturb(EndContainer(first, 137, None))
    await run.advance(8)
    assert run.summary().startswith("Failed")
    assert admitted(run) == set()
    held = [p["metadata"]["name"] for p in run.cluster.pods() if p["metadata"].get("finalizers")]
    assert held == []
    assert len(marked(run)) == (1 if policy == "None" else 0)


async def test_pod_that_succeeded_too_early_costs_a_new_group() -> None:
    """Kueue counts it as done, so it would admit no successor."""
    run = KueueRun(FIXED)
    await run.advance(5)
    first, second, _ = run.cluster.pods()
    run.disturb(EndContainer(second, 0, None))
    await run.advance(1)
    run.disturb(EndContainer(first, 137, None))
    await run.advance(10)
    [group] = run.groups()
    assert group != GROUP_1
    assert len(run.cluster.living()) == 3
    await run.play(seconds=60)
    assert run.kueue.faults == []


async def test_gang_that_the_quota_does_not_admit_waits_without_a_budget() -> None:
    run = KueueRun(FIXED, quota=2, startupDeadlineSeconds=10, activeDeadlineSeconds=20)
    await run.advance(100)
    assert run.summary() == (
        f"Pending: 0 of 3 pods of the Kueue group {GROUP_1} have a Kubernetes node: the queue team"
        " has not admitted it; digits-0 waits: SchedulingGated: Scheduling is blocked due to"
        " non-empty scheduling gates"
    )
    run.kueue.quota = 3
    await run.advance(5)
    assert run.summary().startswith("Running")


async def test_own_extra_nodes_do_not_keep_the_quota_of_the_gang() -> None:
    """The gang has lost its admission, and the job's own further node has a part of the quota."""
    run = KueueRun("base and extras", quota=4, elastic={"minNodes": 3})
    await run.advance(20)
    assert admitted(run) == {GROUP_1, "pod-digits-3"}
    for move in run.kueue.evict(GROUP_1, run.cluster.pods(), "Preempted"):
        run.disturb(move)
    run.kueue.quota = 3
    await run.advance(20)
    assert admitted(run) == {"pod-digits-3"}
    await run.advance(30)
    assert run.summary().startswith("Running")
    assert admitted(run) == {GROUP_1}
