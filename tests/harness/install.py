"""Install the product into a cluster of the harness, as an administrator does."""

import json
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness import images
from tests.harness.cluster import Cluster

ROOT = Path(__file__).parents[2]
SYSTEM_NAMESPACE = "ddp-system"
RELEASE = "ddp-trainer"
_CAPACITY, _MODES = {"storage": "10Gi"}, ["ReadWriteMany"]
OPERATOR_USER = f"system:serviceaccount:{SYSTEM_NAMESPACE}:{RELEASE}"
"""The operator's user name in the audit log."""
VERSION = "0.1.0"
REPOSITORY = "localhost/ddp-trainer"
EXAMPLE_IMAGES = (
    "--set", "image.repository=registry.example/ddp-trainer/operator",
    "--set", "trainerImage.repository=registry.example/ddp-trainer/trainer",
)  # fmt: skip
"""Flags of helm with images that do not exist, for charts that are only rendered."""
CLAIM = "training-shared"
_USER = 1000
"""Uid and gid of worker pods."""


@dataclass(frozen=True)
class Images:
    """Image archives of operator and trainer."""

    operator: Path
    trainer: Path


def build_images(wheels: Path) -> Images:
    """Build both images, with the CPU build of torch if the wheels folder has one."""
    cpu = any(wheels.glob("torch-*+cpu-*")) if wheels.is_dir() else False
    operator = images.build("operator", f"{REPOSITORY}/operator:{VERSION}", {}, None)
    trainer = images.build(
        "trainer",
        f"{REPOSITORY}/trainer:{VERSION}",
        {"TORCH": "cpu" if cpu else "cuda"},
        wheels if cpu else None,
    )
    return Images(operator, trainer)


def load_images(cluster: Cluster, built: Images) -> None:
    """Load both images into all nodes."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(cluster.load_image, (built.operator, built.trainer)))


def install_chart(
    cluster: Cluster,
    values: Mapping[str, str] | None = None,
    *,
    release: str = RELEASE,
    namespace: str = SYSTEM_NAMESPACE,
) -> None:
    """Install the chart with the images of this tree, and wait until the operator is ready.

    The namespace of the release enforces Restricted Pod Security.
    """
    settings = {
        "image.repository": f"{REPOSITORY}/operator",
        "trainerImage.repository": f"{REPOSITORY}/trainer",
        **(values or {}),
    }
    flags = [flag for key, value in settings.items() for flag in ("--set", f"{key}={value}")]
    chart = str(ROOT / "charts")
    apply(cluster, _restricted_namespace(namespace))
    cluster.helm(
        "install", release, chart, "--namespace", namespace, "--wait", "--timeout", "120s", *flags
    )


def apply(cluster: Cluster, document: Mapping[str, object]) -> None:
    """Create or change an object."""
    cluster.kubectl("apply", "-f", "-", input=json.dumps(document))


def _restricted_namespace(name: str) -> Mapping[str, object]:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def create_volume(cluster: Cluster, namespace: str, claim: str) -> None:
    """Create the volume that a claim of a namespace binds to. All nodes share its directory."""
    directory = cluster.shared_dir / (namespace if claim == CLAIM else f"{namespace}-{claim}")
    directory.mkdir(parents=True)
    os.chown(directory, _USER, _USER)
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"{namespace}-{claim}"},
        "spec": {
            "capacity": _CAPACITY,
            "accessModes": _MODES,
            "hostPath": {"path": str(directory)},
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {"namespace": namespace, "name": claim},
        },
    }
    apply(cluster, volume)


def create_namespace(cluster: Cluster, name: str) -> None:
    """Create a namespace with Restricted Pod Security and a claim that all nodes share."""
    apply(cluster, _restricted_namespace(name))
    create_volume(cluster, name, CLAIM)
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": CLAIM, "namespace": name},
        "spec": {
            "accessModes": _MODES,
            "resources": {"requests": _CAPACITY},
            "volumeName": f"{name}-{CLAIM}",
            "storageClassName": "",
        },
    }
    apply(cluster, claim)
    # The API server rejects pods until the namespace has its default service account.
    eventually(
        lambda: (
            cluster.kubectl("-n", name, "get", "serviceaccount", "default", check=False).returncode
            == 0
        ),
        f"service account of namespace {name}",
    )


def operator_pods(cluster: Cluster) -> list[dict[str, Any]]:
    """Return the operator's pods, without the pod that `helm test` leaves beside them."""
    select = ("-l", "app.kubernetes.io/component=operator")
    found = cluster.kubectl("-n", SYSTEM_NAMESPACE, "get", "pods", *select, "-o", "json").stdout
    pods: list[dict[str, Any]] = json.loads(found)["items"]
    return pods


def eventually(
    holds: Callable[[], bool], condition: str, seconds: float = 60.0, every: float = 0.2
) -> None:
    """Wait until a condition holds, checking it at an interval in seconds.

    Raises:
        TimeoutError: The condition did not hold within the time.
    """
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"condition not met within {seconds:.0f} s: {condition}")
        time.sleep(every)
