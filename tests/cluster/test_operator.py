"""The operator rolled, killed or away, and the API server stopped, under a running job."""

import json
import time
from collections.abc import Iterator

import pytest

from tests.cluster.support import STEADY, Job, ask, long_job, script_job
from tests.fault_player.strikes import kill_container, kill_rank
from tests.harness.cluster import Cluster
from tests.tools.install import RELEASE, SYSTEM_NAMESPACE, eventually

pytestmark = pytest.mark.cluster

PATIENCE = [
    {
        "key": f"node.kubernetes.io/{what}",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": 300,
    }
    for what in ("not-ready", "unreachable")
]
"""Of pods with a lost node, as Kubernetes has it by default. This cluster's is 5 s, and after a
long outage it takes its nodes for lost until they have been heard again."""
ENDLESS = 100_000
"""Epochs of a run that outlasts its test."""


def operator(cluster: Cluster, *args: str) -> str:
    """kubectl in the operator's namespace."""
    return cluster.kubectl("-n", SYSTEM_NAMESPACE, *args, timeout=180).stdout


def scale(cluster: Cluster, replicas: int) -> None:
    operator(cluster, "scale", "deployment", RELEASE, f"--replicas={replicas}")
    operator(cluster, "rollout", "status", f"deployment/{RELEASE}", "--timeout=120s")
    eventually(lambda: len(operator(cluster, "get", "pods", "-o", "name").split()) == replicas, "")


def leader(cluster: Cluster) -> str:
    """Who holds the Lease."""
    form = "jsonpath={.spec.holderIdentity}"
    return operator(cluster, "get", "lease", f"{RELEASE}-operator", "-o", form)


def wait_for_the_operator(cluster: Cluster) -> None:
    """Wait until one has renewed or taken the Lease since the API server came back.

    Until then it is kube-proxy that counts: it asks a returned API server again after up to a
    minute, and no pod reaches it before that.
    """

    def renewed() -> str:
        form = "jsonpath={.spec.renewTime}"
        return operator(cluster, "get", "lease", f"{RELEASE}-operator", "-o", form)

    before = renewed()
    eventually(lambda: renewed() != before, "an operator that leads", 120)


def wait_for_the_containers(job: Job, pods: int) -> None:
    """Wait until a container runs in each of so many pods, one that is new after an outage too.

    Until then it is scheduler and kubelet that count: they ask a returned API server again after up
    to 45 s.
    """

    def run() -> bool:
        statuses = [pod["status"].get("containerStatuses", []) for pod in job.pods()]
        running = [s and all("running" in one["state"] for one in s) for s in statuses]
        return len(running) == pods and all(running)

    eventually(run, "the containers", 120)


def restarts(job: Job) -> dict[str, int]:
    """Restarts of each pod's container, by the pod's identity."""
    statuses = [(p["metadata"]["uid"], p["status"]["containerStatuses"]) for p in job.pods()]
    return {uid: sum(one["restartCount"] for one in found) for uid, found in statuses}


def test_case_48_operator_rolled_with_overlap_disturbs_no_job(
    cluster: Cluster, namespace: str
) -> None:
    job = Job.apply(cluster, namespace, script_job("steady", STEADY))
    job.wait_for("Running")
    before, old = restarts(job), leader(cluster)
    operator(cluster, "rollout", "restart", f"deployment/{RELEASE}")
    operator(cluster, "rollout", "status", f"deployment/{RELEASE}", "--timeout=120s")
    eventually(lambda: leader(cluster) not in {"", old}, "another leader", 60)
    assert job.status["attempt"] == 1
    job.kubectl("patch", "ddpjob", job.name, "--type=merge", "-p", '{"spec":{"suspend":true}}')
    eventually(lambda: job.reason == "Suspended", "the new one acts", 60)
    assert set(restarts(job)) <= set(before)
    assert not any(before.values())


@pytest.fixture
def api_server(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, whose API server runs again after the test."""
    yield cluster
    cluster.apiserver_start()


@pytest.mark.sweep
@pytest.mark.parametrize("updates", [100, 3000], ids=["briefly", "for-long"])
def test_case_52_training_goes_on_without_the_api_server(
    api_server: Cluster, namespace: str, updates: int
) -> None:
    manifest = long_job(epochs=ENDLESS)
    manifest["spec"]["podTemplate"] = {"spec": {"tolerations": PATIENCE}}
    job = Job.apply(api_server, namespace, manifest)
    job.wait_for_a_checkpoint()
    address = next(pod["status"]["podIP"] for pod, said in job.words() if said.node_index == 0)

    def step() -> int:
        said = ask(address)
        return said.progress.step if said is not None and said.progress is not None else 0

    goal = step() + updates
    api_server.apiserver_stop()
    eventually(lambda: step() >= goal, "updates without an API server", 200)
    api_server.apiserver_start()
    wait_for_the_operator(api_server)
    eventually(lambda: job.status["progress"]["step"] >= goal, "the status is right again", 60)
    assert job.status["attempt"] == 1
    job.kubectl("delete", "ddpjob", job.name)


@pytest.mark.sweep
@pytest.mark.timeout(480)
def test_case_52_pod_lost_while_the_api_server_is_away(api_server: Cluster, namespace: str) -> None:
    job = Job.apply(api_server, namespace, long_job(epochs=ENDLESS))
    job.wait_for_a_checkpoint()
    pod = next(pod for pod, said in job.words() if said.node_index == 0)
    api_server.apiserver_stop()
    time.sleep(30)  # How long the API server is away.
    kill_container(pod, "worker")
    api_server.apiserver_start()
    wait_for_the_operator(api_server)
    eventually(lambda: job.status["attempt"] == 2, "the next attempt", 60)
    wait_for_the_containers(job, 2)
    job.wait_for("Running", 60)
    assert job.status["infrastructureRestarts"] == 1
    job.kubectl("delete", "ddpjob", job.name)


@pytest.mark.sweep
def test_case_03_operator_away_for_a_minute_acts_within_ten_seconds_of_its_return(
    cluster: Cluster, namespace: str
) -> None:
    job = Job.apply(cluster, namespace, long_job(epochs=ENDLESS))
    job.wait_for_a_checkpoint()
    scale(cluster, 0)
    kill_rank(job, 1)
    time.sleep(60)  # How long it is away.
    scale(cluster, 1)
    eventually(lambda: job.status["attempt"] == 2, "the next attempt", 10)
    job.wait_for("Running", 60)
    assert job.status["restarts"] == 1
    job.kubectl("delete", "ddpjob", job.name)


@pytest.fixture
def two_replicas(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with two operators."""
    scale(cluster, 2)
    yield cluster
    scale(cluster, 1)


@pytest.mark.sweep
def test_case_49_standby_takes_over_when_the_leader_is_killed(
    two_replicas: Cluster, namespace: str
) -> None:
    job = Job.apply(two_replicas, namespace, long_job(epochs=ENDLESS))
    job.wait_for_a_checkpoint()
    before, old = restarts(job), leader(two_replicas)
    pods = json.loads(operator(two_replicas, "get", "pods", "-o", "json"))["items"]
    pod = next(p for p in pods if p["metadata"]["name"] in old)
    kill_container(pod, "operator")
    kill_rank(job, 3)
    # The Lease runs out 15 s after its last renewal; the other one tries each 2 s.
    eventually(lambda: leader(two_replicas) not in {"", old}, "another leader", 30)
    eventually(lambda: job.status["attempt"] == 2, "the next attempt", 30)
    job.wait_for("Running", 60)
    assert restarts(job) == before
    assert job.status["restarts"] == 1
    job.kubectl("delete", "ddpjob", job.name)
