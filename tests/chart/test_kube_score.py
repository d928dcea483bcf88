"""kube-score's findings about the objects of the chart and of a job: each has a reason here.

kube-score is built from its Go module, as helm is, and cached like it.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from ddp_operator.api.job import parse_job
from ddp_operator.builders.network import build_network_policy
from ddp_operator.builders.pod import build_pod
from ddp_operator.builders.service import build_service
from tests.chart.test_chart import template
from tests.harness import binaries
from tests.harness.install import ROOT
from tests.operator.support import DEFAULTS

pytestmark = [pytest.mark.api, pytest.mark.timeout(1200)]

JSON = dict[str, Any]
_PASSED = 10
"""Grade of a check without a finding."""
_VERSION = "container-image-pull-policy"
_DISK = "container-ephemeral-storage-request-and-limit"
_USER = "container-security-context-user-group-id"
CHART = {
    _VERSION: "The tag is a version or a digest. A restart must not need the registry.",
    _DISK: "The operator writes only its log, which the kubelet rotates.",
    _USER: "The image runs as any user, and podSecurityContext sets another one.",
    "container-resources": "A CPU limit would delay the recovery of jobs. Memory has a limit.",
    "deployment-has-host-podantiaffinity": "Topology spread does it, also across zones.",
    "pod-networkpolicy": "Health and metrics contain no secrets; extraObjects can hold a policy.",
}
"""Accepted findings about the chart, by check, with the reason."""
JOB = {
    _VERSION: CHART[_VERSION],
    _DISK: "The author of the job knows what it writes, and sets its resources.",
    _USER: "Files on shared claims belong to this user; workers.user sets another one.",
    "container-resources": "The author of the job sets its resources.",
    "pod-networkpolicy": "It allows all outgoing traffic: data and checkpoints may be anywhere.",
}
"""Accepted findings about a job's objects."""


def findings(folder: Path, documents: str) -> set[str]:
    """Return the checks of kube-score that some object does not pass."""
    file = folder / "objects.yaml"
    file.write_text(documents, encoding="utf-8")
    command = [binaries.kube_score(), "score", "--kubernetes-version=v1.30", "--output-format=json"]
    done = subprocess.run(
        [*command, str(file)], capture_output=True, text=True, check=False, timeout=60
    )
    objects = json.loads(done.stdout)
    assert objects, done.stderr
    return {
        check["check"]["id"]
        for one in objects
        for check in one["checks"]
        if not check["skipped"] and check["grade"] < _PASSED
    }


def test_each_finding_about_the_chart_has_a_reason(tmp_path: Path) -> None:
    """The chart is rendered with two replicas and with the pod of `helm test`."""
    rendered = template("--namespace", "ddp-system", "--set", "replicaCount=2")
    assert findings(tmp_path, rendered.stdout) == set(CHART)


def test_each_finding_about_the_objects_of_a_sample_has_a_reason(tmp_path: Path) -> None:
    sample = yaml.safe_load((ROOT / "manifests" / "samples" / "digits.yaml").read_text("utf-8"))
    stored = {"namespace": "team", "uid": "1", "generation": 1}
    stored["creationTimestamp"] = "2026-01-01T00:00:00Z"
    job = parse_job({**sample, "metadata": {**sample["metadata"], **stored}})
    objects = [build_pod(job, 0, 1, DEFAULTS), build_service(job)]
    objects.append(build_network_policy(job, ()))
    text = "\n---\n".join(json.dumps(one) for one in objects)
    assert findings(tmp_path, text) == set(JOB)
