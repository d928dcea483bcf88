"""Tests of an operator that cannot reach any agent, as behind a NetworkPolicy or a service mesh."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddp_wire.contract import AGENT_PORT, Heartbeat
from tests.cluster.support import JSON, Job, long_job
from tests.fault_player.containers import processes
from tests.fault_player.faults import delete_pod, kill_rank
from tests.harness.cluster import Cluster
from tests.tools.install import SYSTEM_NAMESPACE, eventually

pytestmark = pytest.mark.cluster

TABLE = "inet unreachable-agents"
RULE = f"add chain {TABLE} out {{ type filter hook output priority 0; }}"
DROP = f"add rule {TABLE} out tcp dport {AGENT_PORT} drop"


def nft(pid: int, *commands: str) -> None:
    """Run nftables commands in the network namespace of a process."""
    line = ["nsenter", f"--net=/proc/{pid}/ns/net", "nft", "-f", "-"]
    subprocess.run(line, input="\n".join(commands), text=True, check=True)


class UnaskedJob(Job):
    """A job whose agents the test does not ask either: an agent tells whether it was ever read."""

    def heartbeats(self) -> list[tuple[JSON, Heartbeat]]:
        """Return the newest heartbeat of each rank from the files in the containers."""
        return [(pod, beat) for pod in self.pods() for beat in _heartbeats_inside(pod)]


def _heartbeats_inside(pod: JSON) -> list[Heartbeat]:
    temporary = Path(f"/proc/{processes(pod)[1]}/root/tmp")
    files = temporary.glob("ddp-agent-*/**/beats/*.json")
    beats = [Heartbeat.model_validate_json(file.read_text(encoding="utf-8")) for file in files]
    newest = max((beat.attempt for beat in beats), default=0)
    return [beat for beat in beats if beat.attempt == newest]


@pytest.fixture
def unreachable(cluster: Cluster) -> Iterator[None]:
    """Drop all packets from the operator to agents."""
    pods = json.loads(cluster.kubectl("-n", SYSTEM_NAMESPACE, "get", "pods", "-o", "json").stdout)
    (operator,) = pods["items"]
    container = operator["spec"]["containers"][0]["name"]
    pid = next(iter(processes(operator, container).values()))
    nft(pid, f"add table {TABLE}", RULE, DROP)
    yield
    nft(pid, f"delete table {TABLE}")


def check_runs_again(job: Job, attempt: int) -> None:
    """Wait until the job runs in this attempt. The limit is that of the fault matrix."""

    def runs() -> bool:
        return job.status.get("attempt") == attempt and job.reason == "Running"

    eventually(runs, f"attempt {attempt} runs", 30)


@pytest.mark.usefixtures("unreachable")
def test_case_63_job_starts_recovers_suspends_and_ends_without_a_word_from_its_agents(
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
