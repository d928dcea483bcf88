"""Tests of an operator that cannot reach any agent, as behind a NetworkPolicy or a service mesh."""

from collections.abc import Iterator

import pytest

from tests.cluster.support import Job, UnaskedJob, long_job
from tests.fault_player.faults import delete_pod, kill_rank
from tests.fault_player.unreachable import unreachable_agents
from tests.harness.cluster import Cluster
from tests.harness.install import eventually

pytestmark = pytest.mark.cluster


@pytest.fixture
def unreachable(cluster: Cluster) -> Iterator[None]:
    """Drop all packets from the operator to agents."""
    with unreachable_agents(cluster):
        yield


def check_runs_again(job: Job, attempt: int) -> None:
    """Wait until the job runs in this attempt, at most as long as the fault matrix states."""

    def runs() -> bool:
        return job.status.get("attempt") == attempt and job.reason == "Running"

    eventually(runs, f"attempt {attempt} runs", 30)


@pytest.mark.usefixtures("unreachable")
def test_job_starts_and_recovers_and_suspends_and_ends_with_unreachable_agents(
    cluster: Cluster, namespace: str
) -> None:
    job = UnaskedJob.apply(cluster, namespace, long_job())
    check_runs_again(job, 1)
    # An attempt that ends before it saved a step counts as stalled, whoever hears of it.
    eventually(lambda: job.has_saved_in(1), "attempt 1 saved a checkpoint", 60)
    kill_rank(job, 3)
    check_runs_again(job, 2)
    failure = job.status["lastFailure"]
    assert (failure["reason"], failure["signal"], failure["rank"]) == ("RankFailed", "SIGKILL", 3)
    eventually(lambda: job.has_saved_in(2), "attempt 2 saved a checkpoint", 60)
    delete_pod(job, "digits-0")
    check_runs_again(job, 3)
    assert job.status["stalledAttempts"] == 0
    job.kubectl("patch", "ddpjob", job.name, "--type=merge", "-p", '{"spec": {"suspend": true}}')
    eventually(lambda: job.reason == "Suspended" and not job.pods(), "no pod is left", 90)
    job.kubectl("patch", "ddpjob", job.name, "--type=merge", "-p", '{"spec": {"suspend": false}}')
    status = job.wait_for("Completed", 180)
    assert (status["restarts"], status["infrastructureRestarts"]) == (1, 1)
