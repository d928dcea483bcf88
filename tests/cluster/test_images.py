"""Tests of tags that move, with images that the kubelets pull from a registry."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.registry import Registry, running_registry
from tests.cluster.support import ENDLESS_EPOCHS, STEADY_SCRIPT, Job, long_job, script_job
from tests.cluster.test_upgrade import worker_images
from tests.fault_player.faults import delete_pod
from tests.harness import images, install
from tests.harness.cluster import Cluster
from tests.harness.install import eventually
from tools.release.oci_archive import OciArchive

pytestmark = [pytest.mark.cluster, pytest.mark.sweep]

PEERS = {"labelSelector": {"matchLabels": {"ddp-trainer.dev/job-name": "mixed"}}}
REQUIRED = [PEERS | {"topologyKey": "kubernetes.io/hostname"}]
ANTI_AFFINITY = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": REQUIRED}}
APART = {"spec": {"affinity": ANTI_AFFINITY}}
"""A `podTemplate` that puts the pods of the job `mixed` on different nodes."""


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> OciArchive:
    """Return the image of the trainer as registries have it."""
    wheels = Path(os.environ.get("DDP_WHEELS", "../shared/wheels"))
    archive = install.build_images(wheels).trainer
    written = tmp_path_factory.mktemp("trainer") / "trainer.oci.tar"
    name = f"{install.REPOSITORY}/trainer:{install.VERSION}"
    images.write_oci(archive, name, written, compress=False)
    return OciArchive(written)


@pytest.fixture
def registry() -> Iterator[Registry]:
    """Yield an empty registry from which the nodes can pull."""
    with running_registry() as registry:
        yield registry


def running_digests(job: Job) -> dict[str, str]:
    """Return the digest of the image that the kubelet reports for each pod, by the pod's name."""
    return {
        pod["metadata"]["name"]: pod["status"]["containerStatuses"][0]["imageID"].partition("@")[2]
        for pod in job.pods()
    }


@pytest.mark.timeout(480)
def test_pod_lost_after_the_tag_has_moved_runs_the_image_of_its_peers(
    cluster: Cluster, namespace: str, registry: Registry, trainer: OciArchive
) -> None:
    old = registry.push("stable", trainer)
    manifest = long_job(epochs=ENDLESS_EPOCHS)
    tagged = f"{registry.repository}:stable"
    manifest["spec"] |= {"image": tagged, "imagePullPolicy": "Always"}
    job = Job.apply(cluster, namespace, manifest)
    job.wait_for_checkpoint()
    assert running_digests(job) == {"digits-0": old, "digits-1": old}
    before = job.uids()
    new = registry.push("stable", trainer, version="2")
    delete_pod(job, "digits-1")
    eventually(lambda: job.status["attempt"] == 2, "the status is at attempt 2", 60)
    job.wait_for("Running", 60)
    assert running_digests(job) == {"digits-0": old, "digits-1": old}
    assert worker_images(job) == {tagged, f"{registry.repository}@{old}"}
    assert job.uids()["digits-0"] == before["digits-0"]
    # All pods together pull the tag again, and run its new image.
    job.kubectl("patch", "ddpjob", job.name, "--type=merge", "-p", '{"spec":{"suspend":true}}')
    eventually(lambda: job.reason == "Suspended" and not job.pods(), "no pod is left", 90)
    job.kubectl("patch", "ddpjob", job.name, "--type=merge", "-p", '{"spec":{"suspend":false}}')
    job.wait_for("Running", 120)
    assert running_digests(job) == {"digits-0": new, "digits-1": new}
    job.kubectl("delete", "ddpjob", job.name)


def mixed_images(job: Job) -> str:
    """Return the message of the Event MixedImages, or an empty text."""
    selector = f"reason=MixedImages,involvedObject.name={job.name}"
    return job.kubectl(
        "get", "events", "--field-selector", selector, "-o", "jsonpath={.items[*].message}"
    )


@pytest.mark.timeout(480)
def test_node_with_an_older_image_of_the_tag_is_reported(
    cluster: Cluster, namespace: str, registry: Registry, trainer: OciArchive
) -> None:
    first, second = cluster.node_names
    old = registry.push("stable", trainer)
    image = {"image": f"{registry.repository}:stable", "imagePullPolicy": "IfNotPresent"}
    there = {"kubernetes.io/hostname": first}
    single = script_job("single", "print('done')", nodes=1, nodeSelector=there, **image)
    Job.apply(cluster, namespace, single).wait_for("Completed")
    new = registry.push("stable", trainer, version="2")
    job = Job.apply(
        cluster, namespace, script_job("mixed", STEADY_SCRIPT, podTemplate=APART, **image)
    )
    job.wait_for("Running")
    eventually(lambda: mixed_images(job) != "", "the Event MixedImages", 30)
    digests = running_digests(job)
    nodes = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in job.pods()}
    assert {nodes[pod]: digest for pod, digest in digests.items()} == {first: old, second: new}
    runs = [f"{pod} runs {registry.repository}@{digests[pod]}" for pod in ("mixed-0", "mixed-1")]
    assert mixed_images(job) == (
        "the pods of attempt 1 run different images, because a tag has moved or a Kubernetes node"
        f" holds an older image: {', '.join(runs)}; name the image by its digest"
    )
    job.kubectl("delete", "ddpjob", job.name)
