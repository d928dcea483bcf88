"""Tests of obstacles to a start: the job reports the obstacle, uses no budget and recovers."""

import json
from collections.abc import Iterator

import pytest

from ddp_wire.messages import AgentPhase
from tests.cluster.support import BARRIER_SCRIPT, Job, agents, script_job
from tests.harness.cluster import Cluster
from tests.harness.install import eventually

pytestmark = pytest.mark.cluster

GPU = "nvidia.com/gpu"


def message_contains(job: Job, text: str) -> bool:
    return text in job.row("-o", "wide")["MESSAGE"]


def waiting_attempts(job: Job) -> list[int]:
    """Return the attempts for which agents wait, before torchrun."""
    return [one.attempt for one in agents(job) if one.phase is AgentPhase.WAITING]


def check_no_restarts(job: Job) -> None:
    status = job.wait_for("Completed", 120)
    assert status["attempt"] == 1
    counted = ("restarts", "infrastructureRestarts", "freeRestarts")
    assert [status[name] for name in counted] == [0, 0, 0]


@pytest.mark.sweep
def test_job_starts_when_a_missing_secret_and_configmap_are_created(
    cluster: Cluster, namespace: str
) -> None:
    secret = {"secretKeyRef": {"name": "token", "key": "value"}}
    setting = {"configMapKeyRef": {"name": "settings", "key": "value"}}
    env = [{"name": "TOKEN", "valueFrom": secret}, {"name": "SETTING", "valueFrom": setting}]
    job = Job.apply(cluster, namespace, script_job("needy", BARRIER_SCRIPT, env=env))
    eventually(lambda: message_contains(job, " not found"), "the message of the kubelet", 60)
    assert message_contains(job, "CreateContainerConfigError")
    assert job.reason == "Pending"
    job.kubectl("create", "secret", "generic", "token", "--from-literal=value=x")
    job.kubectl("create", "configmap", "settings", "--from-literal=value=x")
    check_no_restarts(job)


def set_gpus(cluster: Cluster, node: str, count: int | None) -> None:
    patch = {"status": {"capacity": {GPU: None if count is None else str(count)}}}
    flags = ("--subresource=status", "--type=merge", "-p", json.dumps(patch))
    cluster.kubectl("patch", "node", node, *flags)


@pytest.fixture
def gpus(cluster: Cluster) -> Iterator[None]:
    """Remove the GPU capacities that a test set."""
    yield
    for name in cluster.node_names:
        set_gpus(cluster, name, None)


@pytest.mark.usefixtures("gpus")
def test_unschedulable_job_starts_when_nodes_have_capacity(
    cluster: Cluster, namespace: str
) -> None:
    job = Job.apply(
        cluster, namespace, script_job("big", BARRIER_SCRIPT, gpusPerNode=1, procsPerNode=1)
    )
    eventually(
        lambda: message_contains(job, f"Insufficient {GPU}"), "the message of the scheduler", 60
    )
    assert job.reason == "Pending"
    first, second = cluster.node_names
    set_gpus(cluster, first, 1)
    # One pod of two has a node. Its agent waits for its peer, and starts no rendezvous.
    eventually(lambda: waiting_attempts(job) == [1], "one agent waits", 60)
    eventually(
        lambda: message_contains(job, f"Insufficient {GPU}"), "the other pod is unschedulable", 60
    )
    assert waiting_attempts(job) == [1]
    waiting = next(pod for pod in job.pods() if pod["spec"].get("nodeName"))
    job.kubectl("delete", "pod", waiting["metadata"]["name"])
    eventually(lambda: waiting_attempts(job) == [1], "one agent waits again", 60)
    set_gpus(cluster, second, 1)
    check_no_restarts(job)
