"""The operator uses every right that the chart grants, and needs no other.

`conftest.py` runs this file last, because it also reads the requests of all other tests.
"""

import itertools
import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import yaml

from tests.chart.rights import Right, granted_rights, used_rights
from tests.cluster.support import STEADY_SCRIPT, Job, script_job
from tests.harness.cluster import Cluster
from tests.harness.install import OPERATOR_USER, RELEASE, SYSTEM_NAMESPACE, eventually

pytestmark = pytest.mark.cluster

EDITORS = 4
"""Number of concurrent edits of a job."""
JOBS = ("ddp-trainer.dev", "ddpjobs")


def used(cluster: Cluster) -> set[Right]:
    with cluster.audit_log.open(encoding="utf-8") as lines:
        # Parsing is slow, and most lines are about other users.
        entries = [json.loads(line) for line in lines if OPERATOR_USER in line]
    return used_rights(entries, OPERATOR_USER)


def granted(cluster: Cluster) -> set[Right]:
    manifest = cluster.helm("get", "manifest", RELEASE, "--namespace", SYSTEM_NAMESPACE).stdout
    documents = [document for document in yaml.safe_load_all(manifest) if document]
    return granted_rights(documents, SYSTEM_NAMESPACE, RELEASE)


def use_rare_rights(cluster: Cluster, namespace: str) -> None:
    """Make the operator use its rarely used rights: repair children, and delete pods and jobs."""
    unmountable = {
        "volumes": [{"name": "data", "secret": {"secretName": "missing"}}],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    Job.apply(cluster, namespace, script_job("waiting", "pass", nodes=1, **unmountable))
    short = script_job("short", "pass", nodes=1, procsPerNode=1, ttlSecondsAfterFinished=1)
    Job.apply(cluster, namespace, short)
    # No volume has an empty class, so the claim waits.
    template = {"size": "1Mi", "storageClassName": ""}
    claimed = script_job("claimed", "pass", nodes=1, checkpoint={"claimTemplate": template})
    Job.apply(cluster, namespace, claimed)
    job = Job.apply(cluster, namespace, script_job("steady", STEADY_SCRIPT))
    job.wait_for("Running")
    selector = '{"spec":{"selector":{"ddp-trainer.dev/job-uid":"none"}}}'
    job.kubectl("patch", "service", "steady", "--type=merge", "-p", selector)
    eventually(lambda: Right("", "services", "patch") in used(cluster), "a repaired Service")
    closed = '{"spec":{"ingress":[]}}'
    job.kubectl("patch", "networkpolicy", "steady", "--type=merge", "-p", closed)
    repaired = Right("networking.k8s.io", "networkpolicies", "patch")
    eventually(lambda: repaired in used(cluster), "a repaired NetworkPolicy")
    job.kubectl("label", "pvc", "claimed-checkpoints", "app.kubernetes.io/managed-by-")
    patched = Right("", "persistentvolumeclaims", "patch")
    eventually(lambda: patched in used(cluster), "a claim with its label again")
    # The operator takes the pod for lost, finds that its name is taken, and repairs the label.
    job.kubectl("label", "pod", "steady-0", "ddp-trainer.dev/job-uid-")
    eventually(lambda: Right("", "pods", "get") in used(cluster), "a repaired pod", 120)

    def edit(restarts: int) -> None:
        patch = f'{{"spec":{{"maxRestarts":{restarts}}}}}'
        job.kubectl("patch", "ddpjob", "steady", "--type=merge", "-p", patch)

    def was_read() -> bool:
        # Each edit causes a status write. The next edit makes the API server refuse that write, and
        # then the operator reads the job.
        with ThreadPoolExecutor(EDITORS) as editors:
            list(editors.map(edit, range(next(first), 1000, 1000 // (2 * EDITORS))))
        return Right(*JOBS, "get") in used(cluster)

    first = itertools.count(1)
    eventually(was_read, "an edit just before a status write", 180, every=0.0)
    job.kubectl("patch", "ddpjob", "steady", "--type=merge", "-p", '{"spec":{"suspend":true}}')
    eventually(lambda: Right("", "pods", "delete") in used(cluster), "pods of a suspended job")
    listed = Right("", "events", "list")
    eventually(lambda: listed in used(cluster), "a look at the Events of a waiting pod", 60)
    eventually(lambda: Right(*JOBS, "delete") in used(cluster), "an expired job", 120)


def test_operator_uses_exactly_the_rights_that_the_chart_grants(
    cluster: Cluster, namespace: str
) -> None:
    use_rare_rights(cluster, namespace)
    assert used(cluster) == granted(cluster)
