"""Tests of `helm upgrade` while jobs run."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.support import ENDLESS_EPOCHS, Job, long_job
from tests.fault_player.faults import delete_pod
from tests.harness import images, install
from tests.harness.cluster import Cluster
from tests.harness.install import RELEASE, ROOT, SYSTEM_NAMESPACE, eventually

pytestmark = pytest.mark.cluster

TRAINER = f"{install.REPOSITORY}/trainer"
NEWER = "0.1.1"
ONE_MORE_SETTING = (
    "cd $(python3 -c 'import ddp_trainer; print(ddp_trainer.__path__[0])')/config"
    " && sed -i 's/^class OptimizerConfig.*/&\\n    amsgrad: bool = False/' learning.py"
    " && grep -q amsgrad learning.py"
)
"""A script that gives the trainer of an image one more setting, as a later version has."""


def helm_upgrade(cluster: Cluster, *flags: str) -> None:
    """Upgrade the release, keep its other values and wait until the new operator leads."""
    cluster.helm(
        "upgrade", RELEASE, str(ROOT / "charts"), "--namespace", SYSTEM_NAMESPACE,
        "--reuse-values", "--wait", "--timeout", "120s", *flags,
    )  # fmt: skip


@pytest.fixture
def upgradable(cluster: Cluster) -> Iterator[Cluster]:
    """Yield the cluster, with an image of a newer trainer on its nodes. Undo the upgrade."""
    wheels = Path(os.environ.get("DDP_WHEELS", "../shared/wheels"))
    archive = install.build_images(wheels).trainer
    original = f"{TRAINER}:{install.VERSION}"
    cluster.load_image(images.amend(archive, original, f"{TRAINER}:{NEWER}", ONE_MORE_SETTING))
    yield cluster
    helm_upgrade(cluster, "--set", "trainerImage.tag=")


def worker_images(job: Job) -> set[str]:
    """Return the images of the job's pods."""
    return {pod["spec"]["containers"][0]["image"] for pod in job.pods()}


@pytest.mark.sweep
@pytest.mark.timeout(480)
def test_pod_lost_after_helm_upgrade_gets_the_image_of_its_peers(
    upgradable: Cluster, namespace: str
) -> None:
    job = Job.apply(upgradable, namespace, long_job(epochs=ENDLESS_EPOCHS))
    job.wait_for_checkpoint()
    before = job.uids()
    helm_upgrade(upgradable, "--set", f"trainerImage.tag={NEWER}")
    delete_pod(job, "digits-1")
    eventually(lambda: job.status["attempt"] == 2, "the status is at attempt 2", 60)
    job.wait_for("Running", 60)
    job.wait_for_checkpoint()
    assert worker_images(job) == {f"{TRAINER}:{install.VERSION}"}
    assert job.uids()["digits-0"] == before["digits-0"]
    assert job.status["infrastructureRestarts"] == 1
    # All pods together get the new image, and its trainer continues from the old checkpoint.
    job.kubectl("patch", "ddpjob", job.name, "--type=merge", "-p", '{"spec":{"suspend":true}}')
    eventually(lambda: job.reason == "Suspended" and not job.pods(), "no pod is left", 90)
    saved = job.saved_step
    job.kubectl("patch", "ddpjob", job.name, "--type=merge", "-p", '{"spec":{"suspend":false}}')
    job.wait_for("Running", 120)
    assert worker_images(job) == {f"{TRAINER}:{NEWER}"}
    assert job.wait_for_checkpoint() > saved > 0
    job.kubectl("delete", "ddpjob", job.name)
