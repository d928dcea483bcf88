"""Tests that other pods and the operator do not disturb a job that trains.

All tests use the same job, one after another. Each test can also run alone.
"""

import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from ddp_wire.contract import AGENT_PORT
from ddp_wire.messages import AttemptOrder
from tests.cluster.support import STEADY_SCRIPT, Job, operator_requests, script_job
from tests.cluster.test_operator import leader, operator, restarts
from tests.harness import install
from tests.harness.cluster import Cluster
from tests.harness.install import RELEASE, eventually

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def steady(cluster: Cluster) -> Iterator[Job]:
    """Yield a running job, and delete it after the last test."""
    install.create_namespace(cluster, "steady")
    job = Job.apply(cluster, "steady", script_job("steady", STEADY_SCRIPT))
    job.wait_for("Running")
    yield job
    job.kubectl("delete", "ddpjob", job.name)


def send(pod: dict[str, object], path: str, body: bytes | None = None) -> tuple[int, str]:
    """Send a request without a signature to a pod's agent. Return the code and the answer."""
    status = pod["status"]
    assert isinstance(status, dict)
    url = f"http://{status['podIP']}:{AGENT_PORT}{path}"
    try:
        with urllib.request.urlopen(url, data=body, timeout=5) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_unsigned_orders_do_not_disturb_a_run(steady: Job) -> None:
    uid, pods = steady.read()["metadata"]["uid"], steady.pods()
    for pod in pods:
        for attempt in (1, 2, 2**40):
            order = AttemptOrder(job_uid=uid, attempt=attempt).to_json().encode()
            assert send(pod, "/attempt", order)[0] == 403
        code, text = send(pod, "/status")
        assert (code, uid in text) == (403, False)
        assert send(pod, "/readyz") == (200, "ok\n")
    assert [status.attempt for _, status in steady.agent_statuses()] == [1, 1]
    assert (steady.status["attempt"], steady.reason) == (1, "Running")


def test_unchanged_job_causes_no_requests(cluster: Cluster, steady: Job) -> None:
    # The last request of a start records that the spec trains, after a minute for a command.
    eventually(lambda: "trainedSpecHash" in steady.status, "the record of the spec", 120)
    window = 60.0
    quiet_from = len(operator_requests(cluster))
    with pytest.raises(TimeoutError):
        eventually(lambda: len(operator_requests(cluster)) > quiet_from, "a request", window)
    row = steady.row()
    assert (row["STATUS"], row["READY"], row["ATTEMPT"]) == ("Running", "2/2", "1")


def test_operator_rollout_disturbs_no_job(cluster: Cluster, steady: Job) -> None:
    before, old = restarts(steady), leader(cluster)
    operator(cluster, "rollout", "restart", f"deployment/{RELEASE}")
    operator(cluster, "rollout", "status", f"deployment/{RELEASE}", "--timeout=120s")
    eventually(lambda: leader(cluster) not in {"", old}, "another replica leads", 60)
    assert steady.status["attempt"] == 1
    suspend = '{"spec":{"suspend":true}}'
    steady.kubectl("patch", "ddpjob", steady.name, "--type=merge", "-p", suspend)
    eventually(lambda: steady.reason == "Suspended", "the new leader suspends the job", 60)
    assert set(restarts(steady)) <= set(before)
    assert not any(before.values())
