"""Tests of an operator that is rolled, killed or down, and of a stopped API server."""

import json
import time
from collections.abc import Iterator

import pytest

from tests.cluster.support import (
    ENDLESS_EPOCHS,
    Job,
    long_job,
    query_agent,
)
from tests.fault_player.faults import kill_container, kill_rank
from tests.harness.cluster import Cluster
from tests.harness.install import RELEASE, SYSTEM_NAMESPACE, eventually, operator_pods

pytestmark = pytest.mark.cluster

DEFAULT_TOLERATIONS = [
    {
        "key": f"node.kubernetes.io/{what}",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": 300,
    }
    for what in ("not-ready", "unreachable")
]
"""Tolerations with Kubernetes' default of 300 s instead of this cluster's 5 s.

After a long outage the node controller marks nodes as lost until their next heartbeat.
"""


def operator(cluster: Cluster, *args: str) -> str:
    """Run kubectl in the operator's namespace and return its output."""
    return cluster.kubectl("-n", SYSTEM_NAMESPACE, *args, timeout=180).stdout


def scale(cluster: Cluster, replicas: int) -> None:
    operator(cluster, "scale", "deployment", RELEASE, f"--replicas={replicas}")
    operator(cluster, "rollout", "status", f"deployment/{RELEASE}", "--timeout=120s")
    eventually(lambda: len(operator_pods(cluster)) == replicas, f"{replicas} operators")


def leader(cluster: Cluster) -> str:
    """Return the holder of the Lease."""
    form = "jsonpath={.spec.holderIdentity}"
    return operator(cluster, "get", "lease", f"{RELEASE}-operator", "-o", form)


def wait_for_operator(cluster: Cluster) -> None:
    """Wait until an operator has renewed or taken the Lease since the API server returned.

    kube-proxy may need up to a minute to reach a returned API server. Pods reach it only after
    that, so the operator's own delay counts from then.
    """

    def renewed() -> str:
        form = "jsonpath={.spec.renewTime}"
        return operator(cluster, "get", "lease", f"{RELEASE}-operator", "-o", form)

    before = renewed()
    eventually(lambda: renewed() != before, "an operator renews the Lease", 120)


def wait_for_containers(job: Job, pods: int) -> None:
    """Wait until a container runs in each of this many pods, also in pods created after an outage.

    Scheduler and kubelet may need up to 45 s to reach a returned API server.
    """

    def run() -> bool:
        statuses = [pod["status"].get("containerStatuses", []) for pod in job.pods()]
        running = [s and all("running" in one["state"] for one in s) for s in statuses]
        return len(running) == pods and all(running)

    eventually(run, "the containers run", 120)


def restarts(job: Job) -> dict[str, int]:
    """Return the container restarts of each pod, by the pod's uid."""
    statuses = [(p["metadata"]["uid"], p["status"]["containerStatuses"]) for p in job.pods()]
    return {uid: sum(one["restartCount"] for one in found) for uid, found in statuses}


@pytest.fixture
def api_server(cluster: Cluster) -> Iterator[Cluster]:
    """Yield the cluster, and start its API server again after the test."""
    yield cluster
    cluster.apiserver_start()


@pytest.mark.sweep
@pytest.mark.parametrize("updates", [100, 3000], ids=["briefly", "for-long"])
def test_training_continues_without_the_api_server(
    api_server: Cluster, namespace: str, updates: int
) -> None:
    manifest = long_job(epochs=ENDLESS_EPOCHS)
    manifest["spec"]["podTemplate"] = {"spec": {"tolerations": DEFAULT_TOLERATIONS}}
    job = Job.apply(api_server, namespace, manifest)
    job.wait_for_checkpoint()
    first = next(pod for pod, status in job.agent_statuses() if status.node_index == 0)

    def step() -> int:
        agent = query_agent(first)
        return agent.progress.step if agent is not None and agent.progress is not None else 0

    goal = step() + updates
    api_server.apiserver_stop()
    eventually(lambda: step() >= goal, "updates without an API server", 200)
    api_server.apiserver_start()
    wait_for_operator(api_server)
    eventually(lambda: job.status["progress"]["step"] >= goal, "the status is current again", 60)
    assert job.status["attempt"] == 1
    job.kubectl("delete", "ddpjob", job.name)


@pytest.mark.sweep
@pytest.mark.timeout(480)
def test_operator_recovers_a_pod_lost_during_an_api_server_outage(
    api_server: Cluster, namespace: str
) -> None:
    job = Job.apply(api_server, namespace, long_job(epochs=ENDLESS_EPOCHS))
    job.wait_for_checkpoint()
    pod = next(pod for pod, status in job.agent_statuses() if status.node_index == 0)
    api_server.apiserver_stop()
    time.sleep(30)  # Duration of the API server's outage.
    kill_container(pod, "worker")
    api_server.apiserver_start()
    wait_for_operator(api_server)
    eventually(lambda: job.status["attempt"] == 2, "the status is at attempt 2", 60)
    wait_for_containers(job, 2)
    job.wait_for("Running", 60)
    assert job.status["infrastructureRestarts"] == 1
    job.kubectl("delete", "ddpjob", job.name)


@pytest.mark.sweep
def test_operator_acts_within_ten_seconds_after_a_minute_of_downtime(
    cluster: Cluster, namespace: str
) -> None:
    job = Job.apply(cluster, namespace, long_job(epochs=ENDLESS_EPOCHS))
    job.wait_for_checkpoint()
    scale(cluster, 0)
    kill_rank(job, 1)
    time.sleep(60)  # Downtime of the operator.
    scale(cluster, 1)
    eventually(lambda: job.status["attempt"] == 2, "the status is at attempt 2", 10)
    job.wait_for("Running", 60)
    assert job.status["restarts"] == 1
    job.kubectl("delete", "ddpjob", job.name)


@pytest.fixture
def two_replicas(cluster: Cluster) -> Iterator[Cluster]:
    """Yield the cluster with two operator replicas."""
    scale(cluster, 2)
    yield cluster
    scale(cluster, 1)


@pytest.mark.sweep
def test_second_replica_takes_over_when_the_leader_is_killed(
    two_replicas: Cluster, namespace: str
) -> None:
    job = Job.apply(two_replicas, namespace, long_job(epochs=ENDLESS_EPOCHS))
    job.wait_for_checkpoint()
    before, old = restarts(job), leader(two_replicas)
    pods = json.loads(operator(two_replicas, "get", "pods", "-o", "json"))["items"]
    pod = next(p for p in pods if p["metadata"]["name"] in old)
    kill_container(pod, "operator")
    kill_rank(job, 3)
    # The Lease expires 15 s after its last renewal; the other replica tries every 2 s.
    eventually(lambda: leader(two_replicas) not in {"", old}, "another replica leads", 30)
    eventually(lambda: job.status["attempt"] == 2, "the status is at attempt 2", 30)
    job.wait_for("Running", 60)
    assert restarts(job) == before
    assert job.status["restarts"] == 1
    job.kubectl("delete", "ddpjob", job.name)
