"""What keeps a job from starting is said, costs nothing, and heals by itself."""

import json
from collections.abc import Iterator

import pytest

from tests.cluster.support import MEET, Job, script_job
from tests.harness.cluster import Cluster
from tests.tools.install import eventually

pytestmark = pytest.mark.cluster

GPU = "nvidia.com/gpu"


def message_has(job: Job, words: str) -> bool:
    return words in job.row("-o", "wide")["MESSAGE"]


def check_that_it_cost_nothing(job: Job) -> None:
    status = job.wait_for("Completed", 120)
    assert status["attempt"] == 1
    counted = ("restarts", "infrastructureRestarts", "freeRestarts")
    assert [status[name] for name in counted] == [0, 0, 0]


@pytest.mark.sweep
def test_case_27_missing_secret_and_configmap_heal_when_they_are_created(
    cluster: Cluster, namespace: str
) -> None:
    secret = {"secretKeyRef": {"name": "token", "key": "value"}}
    setting = {"configMapKeyRef": {"name": "settings", "key": "value"}}
    env = [{"name": "TOKEN", "valueFrom": secret}, {"name": "SETTING", "valueFrom": setting}]
    job = Job.apply(cluster, namespace, script_job("needy", MEET, env=env))
    eventually(lambda: message_has(job, " not found"), "the kubelet's word", 60)
    assert message_has(job, "CreateContainerConfigError")
    assert job.reason == "Pending"
    job.kubectl("create", "secret", "generic", "token", "--from-literal=value=x")
    job.kubectl("create", "configmap", "settings", "--from-literal=value=x")
    check_that_it_cost_nothing(job)


def set_gpus(cluster: Cluster, node: str, count: int | None) -> None:
    patch = {"status": {"capacity": {GPU: None if count is None else str(count)}}}
    flags = ("--subresource=status", "--type=merge", "-p", json.dumps(patch))
    cluster.kubectl("patch", "node", node, *flags)


@pytest.fixture
def gpus(cluster: Cluster) -> Iterator[None]:
    """What a test said of GPUs is taken back."""
    yield
    for name in cluster.node_names:
        set_gpus(cluster, name, None)


@pytest.mark.usefixtures("gpus")
def test_case_28_and_29_unschedulable_whole_or_in_part_heals_when_nodes_appear(
    cluster: Cluster, namespace: str
) -> None:
    job = Job.apply(cluster, namespace, script_job("big", MEET, gpusPerNode=1, procsPerNode=1))
    eventually(lambda: message_has(job, f"Insufficient {GPU}"), "the scheduler's word", 60)
    assert job.reason == "Pending"
    first, second = cluster.node_names
    set_gpus(cluster, first, 1)
    # One pod of two has a place: it waits, and neither it nor the job gives up.
    eventually(lambda: len(job.words()) == 1, "an agent that waits for its peer", 60)
    eventually(lambda: message_has(job, f"Insufficient {GPU}"), "the other has no place", 60)
    set_gpus(cluster, second, 1)
    check_that_it_cost_nothing(job)
