"""The sample with an init step and a claim of its own, on two real nodes."""

import json

import pytest

from tests.cluster.support import Job, sample
from tests.harness import install
from tests.harness.cluster import Cluster

pytestmark = pytest.mark.cluster

CLAIM = "init-steps-checkpoints"
FAILS_ONCE = "import os, sys\nif os.environ['DDP_INIT_TRY'] == '1': sys.exit('no such host')\n"


def test_sample_prepares_its_data_on_its_own_claim_after_a_failed_try(
    cluster: Cluster, namespace: str
) -> None:
    install.create_volume(cluster, namespace, CLAIM)
    manifest = sample("init-steps")
    manifest["spec"]["checkpoint"]["claimTemplate"]["storageClassName"] = ""
    manifest["spec"]["init"][0]["command"][-1] = (
        FAILS_ONCE + manifest["spec"]["init"][0]["command"][-1]
    )
    job = Job.apply(cluster, namespace, manifest)
    job.wait_for("Completed")
    assert "rank 0 read 25 parts; all parts add up to 4950" in job.kubectl("logs", "init-steps-0")
    assert "100 parts after try 2" in job.kubectl("logs", "init-steps-init-prepare-2")
    status = job.status
    assert (status["init"]["completed"], status["attempt"], status["replicas"]) == (1, 1, 2)
    bound = {c["type"]: c for c in status["conditions"]}["ClaimBound"]
    assert (bound["status"], bound["reason"]) == ("True", "Bound")
    events = json.loads(job.kubectl("get", "events", "-o", "json"))["items"]
    retried = [e["message"] for e in events if e["reason"] == "InitStepRetried"]
    assert len(retried) == 1
    assert retried[0].endswith("because it ended with exit code 1: no such host")
    job.kubectl("delete", "ddpjob", "init-steps")
    install.eventually(
        lambda: CLAIM not in job.kubectl("get", "pvc", "-o", "name"), "the claim goes with its job"
    )
