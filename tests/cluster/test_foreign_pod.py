"""A pod that is not the job's talks to the agents of a real run."""

import urllib.error
import urllib.request

import pytest

from ddp_wire.contract import AGENT_PORT, AttemptOrder
from tests.cluster.support import STEADY_SCRIPT, Job, script_job
from tests.harness.cluster import Cluster
from tests.harness.install import eventually

pytestmark = pytest.mark.cluster


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


def test_unsigned_orders_do_not_disturb_a_run(cluster: Cluster, namespace: str) -> None:
    job = Job.apply(cluster, namespace, script_job("steady", STEADY_SCRIPT))
    eventually(lambda: job.reason == "Running", "the job runs", 120)
    uid, pods = job.read()["metadata"]["uid"], job.pods()
    for pod in pods:
        for attempt in (1, 2, 2**40):
            order = AttemptOrder(job_uid=uid, attempt=attempt).to_json().encode()
            assert send(pod, "/attempt", order)[0] == 403
        code, text = send(pod, "/status")
        assert (code, uid in text) == (403, False)
        assert send(pod, "/readyz") == (200, "ok\n")
    assert [status.attempt for _, status in job.agent_statuses()] == [1, 1]
    assert (job.status["attempt"], job.reason) == (1, "Running")
