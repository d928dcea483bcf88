"""Elastic jobs on the real cluster."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ddp_wire import node_ranges
from tests.cluster.support import ENDLESS_EPOCHS, EVERY_UPDATE, Job, sample
from tests.harness.cluster import Cluster
from tests.harness.install import eventually

LIMITS = {"minNodes": 1, "startWaitSeconds": 5, "shrinkAfterSeconds": 2, "growAfterSeconds": 2}


def elastic_job(**limits: int) -> dict[str, Any]:
    """Return the sample as an elastic job with short limits and a run that outlasts the test."""
    manifest = sample("elastic")
    manifest["spec"]["config"] |= {"epochs": ENDLESS_EPOCHS, "log": EVERY_UPDATE}
    manifest["spec"]["checkpoint"] |= {"everySteps": 20}
    manifest["spec"]["elastic"] |= LIMITS | limits
    # Without a CPU request the kernel would prefer the control plane on the same cores.
    manifest["spec"]["resources"] = {"requests": {"cpu": "400m"}}
    return manifest


def wait_for_members(job: Job, members: set[int], seconds: float = 120) -> dict[str, Any]:
    """Wait until exactly these nodes train and have done an update. Return the status."""
    text = node_ranges.to_text(members)

    def train() -> bool:
        status = job.status
        resize = status.get("lastResize", {})
        done = resize.get("attempt") != status.get("attempt") or "milliseconds" in resize
        return status.get("members") == text and job.reason == "Running" and done

    try:
        eventually(train, f"the members {text} train", seconds)
    except TimeoutError as error:
        raise AssertionError(f"{error}\n{job.kubectl('describe', 'ddpjob', job.name)}") from error
    return job.status


def node_index(job: Job, node: str) -> int:
    """Return the node of the job that runs on a Kubernetes node, once the scheduler has decided."""
    found: list[str] = []

    def is_scheduled() -> bool:
        found[:] = [p["metadata"]["name"] for p in job.pods() if p["spec"].get("nodeName") == node]
        return len(found) == 1

    eventually(is_scheduled, f"one pod runs on {node}", 60)
    return int(found[0].rpartition("-")[2])


def scale(job: Job, nodes: int) -> None:
    """Change the number of nodes, as a user or an HPA does."""
    job.kubectl("scale", "ddpjob", job.name, f"--replicas={nodes}")


@contextmanager
def cordoned(cluster: Cluster, node: str) -> Iterator[None]:
    """Cordon a node, as `kubectl drain` does first, and uncordon it at the end."""
    cluster.kubectl("cordon", node)
    try:
        yield
    finally:
        cluster.kubectl("uncordon", node)


@contextmanager
def tainted(cluster: Cluster, node: str) -> Iterator[None]:
    """Set a taint that new pods do not tolerate."""
    cluster.kubectl("taint", "node", node, "maintenance=now:NoSchedule")
    try:
        yield
    finally:
        cluster.kubectl("taint", "node", node, "maintenance-")


def check_costs(status: dict[str, Any], *, infrastructure: int) -> None:
    """Check that only losses were charged."""
    assert status["restarts"] == 0
    assert status["infrastructureRestarts"] == infrastructure
