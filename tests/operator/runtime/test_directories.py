"""Tests of jobs that share a checkpoint directory: which job owns the directory, and until when."""

import itertools
import time
from typing import Any

import pytest

from ddp_operator.cluster.base import Key, Manifest
from ddp_operator.reconcile.waiting import LOOK_SECONDS
from ddp_operator.runtime.cache import Cache
from ddp_operator.runtime.controller import Controller
from tests.operator.direct_statuses import DirectStatuses
from tests.operator.fake_cluster import FakeCluster
from tests.operator.support import DEFAULTS, NOW, after, job_manifest

WAITS = "CheckpointPathInUse"
SHARED: dict[str, Any] = {"checkpoint": {"claimName": "shared", "path": "runs/a"}, "nodes": 2}


def shared_job(
    name: str, *, created: float = 0, namespace: str = "team-a", **spec: Any
) -> Manifest:
    job = job_manifest(name, **(SHARED | spec))
    job["metadata"] |= {
        "uid": f"uid-{name}",
        "namespace": namespace,
        "creationTimestamp": after(created).isoformat(),
    }
    return job


class Team:
    """Cluster with several jobs and one controller."""

    def __init__(self, *jobs: Manifest) -> None:
        self.now = NOW
        self.cluster, self.woken = FakeCluster(), list[Key]()
        for job in jobs:
            self.cluster.apply(job)
        self.restart()

    def restart(self) -> None:
        """Start a new operator, which lists all jobs before it decides."""
        self.cache = Cache()
        self.cluster.watching = self.cache
        self.cache.replace(self.cluster.snapshot())
        self.cache.directories.on_release = self.woken.append
        agents = DirectStatuses(self.cluster)
        self.controller = Controller(
            self.cluster, self.cache, DEFAULTS, lambda: self.now, agents=agents
        )

    async def look(self, *names: str, namespace: str = "team-a") -> None:
        for name in names:
            for _ in range(3):
                await self.controller.reconcile((namespace, name))

    def reasons(self) -> dict[str, str]:
        """Return the reason of PodsReady by job."""
        found = {}
        for (_, name), job in self.cluster.jobs.items():
            kinds = {c["type"]: c["reason"] for c in job["status"].get("conditions", [])}
            found[name] = kinds.get("PodsReady", "none")
        return found

    def with_pods(self) -> set[str]:
        """Return the names of the jobs that have pods."""
        return {p["metadata"]["name"].rpartition("-")[0] for p in self.cluster.pods()}

    def edit(self, name: str, **spec: Any) -> None:
        self.cluster.apply(shared_job(name, **spec))

    async def complete(self, name: str) -> None:
        for found in self.cluster.pods():
            if found["metadata"]["name"].startswith(f"{name}-"):
                state = {"terminated": {"exitCode": 0, "finishedAt": self.now.isoformat()}}
                states = [{"name": "worker", "state": state}]
                self.cluster.change_pod(
                    found["metadata"]["name"], phase="Succeeded", containerStatuses=states
                )
        await self.look(name)


@pytest.mark.parametrize("order", list(itertools.permutations(("first", "second", "third"))))
async def test_only_the_oldest_of_three_jobs_starts_in_any_order_of_reconciles(
    order: tuple[str, ...],
) -> None:
    jobs = [shared_job("second", created=1), shared_job("third", created=2), shared_job("first")]
    team = Team(*jobs)
    await team.look(*order)
    await team.look(*order)
    assert team.with_pods() == {"first"}
    assert team.reasons() == {"second": WAITS, "third": WAITS, "first": "NotReady"}
    events = [e.message for e in team.cluster.events if e.reason == WAITS]
    assert len(events) == 2
    named = "shared/runs/a of the checkpoints is in use by the DDPJob first"
    assert all(named in message for message in events)


async def test_jobs_of_one_directory_take_turns_and_the_next_job_starts_at_once() -> None:
    team = Team(*(shared_job(name, created=i) for i, name in enumerate(("a", "b", "c"))))
    for name, following in (("a", "b"), ("b", "c")):
        await team.look("a", "b", "c")
        assert team.with_pods() == {one for one in "abc" if one <= name}
        await team.complete(name)
        assert team.woken == [("team-a", following)]
        team.woken.clear()
    await team.look("c")
    assert team.with_pods() == {"a", "b", "c"}


async def test_restarted_operator_finds_the_same_owner_of_a_checkpoint_directory() -> None:
    """The owner is the younger job. It has started before, and is suspended now."""
    team = Team(shared_job("younger", created=9))
    await team.look("younger")
    team.edit("younger", suspend=True)
    await team.look("younger")
    team.cluster.apply(shared_job("older"))
    team.restart()
    await team.look("older", "younger")
    assert team.reasons() == {"younger": "Suspended", "older": WAITS}
    team.edit("younger")
    await team.look("older", "younger", "older")
    assert team.with_pods() == {"younger"}


async def test_deleted_owner_frees_the_directory_also_for_a_job_of_its_name() -> None:
    team = Team(shared_job("first"), shared_job("second", created=1))
    await team.look("first", "second")
    await team.cluster.delete_job(("team-a", "first"), "uid-first")
    assert team.woken == [("team-a", "second")]
    again = shared_job("first", created=2)
    again["metadata"]["uid"] = "uid-again"
    team.cluster.apply(again)
    await team.look("first", "second")
    assert team.reasons() == {"first": WAITS, "second": "NotReady"}


async def test_relist_with_a_recreated_owner_frees_the_directory() -> None:
    team = Team(shared_job("first"), shared_job("second", created=1))
    await team.look("first", "second")
    again = shared_job("first", created=2)
    again["metadata"]["uid"] = "uid-again"
    team.cluster.watching = None
    await team.cluster.delete_job(("team-a", "first"), "uid-first")
    team.cluster.apply(again)
    team.cluster.watching = team.cache
    team.cache.replace(team.cluster.snapshot())
    await team.look("first", "second")
    assert team.reasons() == {"first": WAITS, "second": "NotReady"}


@pytest.mark.parametrize(
    "spec",
    [{"suspend": True}, {"config": {"no_such_setting": 1}}],
    ids=["created suspended", "Invalid"],
)
async def test_job_that_never_started_and_cannot_start_owns_no_directory(
    spec: dict[str, Any],
) -> None:
    team = Team(shared_job("first", **spec), shared_job("second", created=1))
    await team.look("first", "second")
    assert team.with_pods() == {"second"}
    team.edit("first")
    await team.look("first", "second")
    assert (team.with_pods(), team.reasons()["first"]) == ({"second"}, WAITS)
    await team.complete("second")
    await team.look("first")
    assert team.with_pods() == {"first", "second"}


async def test_edited_job_waits_and_frees_its_own_directory() -> None:
    other: dict[str, Any] = {"checkpoint": {"claimName": "shared", "path": "runs/b"}}
    team = Team(shared_job("a"), shared_job("b", created=1, **other))
    await team.look("a", "b")
    team.edit("b")
    await team.look("b")
    assert team.reasons() == {"a": "NotReady", "b": WAITS}
    team.restart()
    team.edit("a", **other)
    await team.look("a", "b")
    assert team.reasons() == {"a": "NotReady", "b": "NotReady"}


@pytest.mark.parametrize(
    "other",
    [
        {"checkpoint": {"claimName": "shared", "path": "runs/b"}},
        {"checkpoint": {"claimName": "shared", "path": "runs"}},
        {"checkpoint": {"claimName": "shared", "path": "runs/a/b"}},
        {"checkpoint": {"claimName": "other", "path": "runs/a"}},
        {"checkpoint": {"claimName": "shared"}},
        {"checkpoint": None},
        {"namespace": "team-b"},
    ],
    ids=lambda other: str(next(iter(other.values()))),
)
async def test_jobs_with_directories_of_their_own_do_not_wait(other: dict[str, Any]) -> None:
    """A subdirectory of another run's directory is independent: it has its own fence and files."""
    team = Team(shared_job("first"), shared_job("second", created=1, **other))
    await team.look("first")
    await team.look("second", namespace=other.get("namespace", "team-a"))
    assert team.with_pods() == {"first", "second"}


async def test_path_that_names_the_unique_directory_of_another_job_is_in_use() -> None:
    """Users copy this path from a job to continue its run in another job."""
    team = Team(shared_job("first", checkpoint={"claimName": "shared"}))
    await team.look("first")
    path = "first-uid-first"
    team.cluster.apply(shared_job("second", checkpoint={"claimName": "shared", "path": path}))
    await team.look("second")
    assert team.reasons() == {"first": "NotReady", "second": WAITS}


async def test_owner_stays_the_owner_while_its_first_status_is_being_written() -> None:
    """Another worker decides meanwhile about an older job that a user has just resumed."""
    team = Team(shared_job("older", suspend=True), shared_job("younger", created=1))
    assert team.cache.directories.owner(("team-a", "younger")) is None
    team.edit("older")
    assert team.cache.directories.owner(("team-a", "older")) == "younger"


async def test_job_of_a_namespace_that_was_never_listed_waits_for_the_list() -> None:
    """The watch of a namespace that refused the operator delivers its jobs one by one."""
    team = Team(shared_job("second", created=1))
    listed: list[str] = []
    team.controller = Controller(
        team.cluster,
        team.cache,
        DEFAULTS,
        lambda: team.now,
        agents=DirectStatuses(team.cluster),
        is_listed=listed.__contains__,
    )
    assert await team.controller.reconcile(("team-a", "second")) == LOOK_SECONDS
    assert team.cluster.writes == []
    team.cluster.apply(shared_job("alone", checkpoint={"claimName": "shared"}))
    await team.look("alone")
    assert team.with_pods() == {"alone"}
    team.cluster.apply(shared_job("first"))
    listed.append("team-a")
    await team.look("second", "first")
    assert team.with_pods() == {"alone", "first"}


@pytest.mark.parametrize(
    "part", [{"spec": {"checkpoint": "shared"}}, {"spec": None}, {"status": {"conditions": [{}]}}]
)
def test_malformed_job_claims_no_checkpoint_directory(part: Manifest) -> None:
    cache = Cache()
    cache.put_job(shared_job("odd") | part)
    assert cache.directories.owner(("team-a", "odd")) is None


def test_lookup_of_the_owner_is_as_fast_with_1000_jobs_of_one_directory_as_with_2() -> None:
    def seconds(jobs: int) -> float:
        cache = Cache()
        for number in range(jobs):
            cache.put_job(shared_job(f"job-{number}", created=number))
        key = ("team-a", f"job-{jobs - 1}")
        assert cache.directories.owner(key) == "job-0"
        times = []
        for _ in range(200):
            began = time.perf_counter()
            cache.directories.owner(key)
            times.append(time.perf_counter() - began)
        return min(times)

    assert seconds(1000) < 10 * seconds(2)
