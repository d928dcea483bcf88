"""The samples own-image.yaml and serve.yaml: a user's image, its run and its exported model."""

import os
from pathlib import Path

import pytest

from tests.cluster.support import Job, sample
from tests.harness import images, install
from tests.harness.cluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.sweep]

SAMPLES = install.ROOT / "manifests" / "samples"
IMAGE = str(sample("own-image")["spec"]["image"])
REQUEST = """
import json, urllib.error, urllib.request
from waves.task import waves

def answer(inputs):
    body = json.dumps({"inputs": inputs}).encode()
    try:
        return urllib.request.urlopen("http://serve-waves", body, timeout=30).read().decode()
    except urllib.error.HTTPError as error:
        return f"{error.code}"

x, classes = waves(200, 0.3, 9).tensors
found = json.loads(answer(x.tolist()))["classes"]
print(sum(a == b for a, b in zip(found, classes.tolist(), strict=True)), answer([[1.0]]))
"""
"""Ask the Service as another pod would, and print the number of right answers of 200, and the
status of the answer to a wrong request."""


@pytest.fixture
def nodes_with_image(cluster: Cluster) -> Cluster:
    """Return the cluster, with the image of own-image/Dockerfile on its nodes."""
    wheels = Path(os.environ.get("DDP_WHEELS", "../shared/wheels"))
    trainer = {"TRAINER": f"{install.REPOSITORY}/trainer:{install.VERSION}"}
    base = install.build_images(wheels).trainer
    archive = images.build_upon(base, SAMPLES / "own-image", "waves", IMAGE, trainer)
    cluster.load_image(archive)
    return cluster


@pytest.mark.timeout(1200)
def test_job_with_an_own_image_trains_and_its_exported_model_answers(
    nodes_with_image: Cluster, namespace: str
) -> None:
    job = Job.apply(nodes_with_image, namespace, sample("own-image"))
    job.wait_for("Completed", 180)
    job.kubectl("apply", "-f", str(SAMPLES / "serve.yaml"))
    job.kubectl("wait", "--for=condition=Complete", "job/export-waves", "--timeout=180s")
    # The server started before its file was there, and waits up to five minutes between restarts.
    job.kubectl("rollout", "status", "deployment/serve-waves", "--timeout=360s")
    answered = job.kubectl("exec", "deploy/serve-waves", "--", "python", "-c", REQUEST)
    right, refused = answered.split()
    assert int(right) > 180
    assert refused == "400"
