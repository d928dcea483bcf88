"""Create pods with a plain API client, which shows the limit of this API server."""

import asyncio
import json
from typing import Any

from ddp_wire import contract
from tests.api.client import Api
from tests.harness import gobuild, paths
from tests.harness.cluster import Cluster
from tests.harness.install import ROOT
from tests.harness.pki import Authority, Pair
from tests.harness.run import command

CONNECTIONS = 32
"""Number of concurrent requests, equal to the operator's limit."""
POD_NUMBER = "POD-NUMBER"
"""Placeholder in the pod that the client replaces by the number of each copy."""
_SOURCE = ROOT / "bench" / "scale" / "bare"
_BUILD_SECONDS = 600.0
_RUN_SECONDS = 600.0


def template(pod: dict[str, Any]) -> dict[str, Any]:
    """Return a pod of the operator without its owner and with a placeholder in its name."""
    labels = pod["metadata"]["labels"]
    others = {k: v for k, v in labels.items() if k != contract.LABEL_MANAGED_BY}
    volumes = [v for v in pod["spec"]["volumes"] if not _is_token(v["name"])]
    containers = [
        {**c, "volumeMounts": [m for m in c["volumeMounts"] if not _is_token(m["name"])]}
        for c in pod["spec"]["containers"]
    ]
    metadata = {
        "name": f"bare-{POD_NUMBER}",
        "labels": others,
        "annotations": pod["metadata"]["annotations"],
    }
    spec = {k: v for k, v in pod["spec"].items() if k != "nodeName"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {**spec, "volumes": volumes, "containers": containers},
    }


def _is_token(name: str) -> bool:
    """Return whether a volume is the token volume that the API server adds."""
    return name.startswith("kube-api-access-")


async def create_pods(
    cluster: Cluster, api: Api, namespace: str, pod: dict[str, Any], count: int
) -> float:
    """Create pods in a new namespace. Return the seconds from the first request to the last answer.

    Args:
        cluster: The cluster.
        api: The administrator's client.
        namespace: Name of the namespace.
        pod: A pod that our operator created.
        count: Number of pods.
    """
    await api.create_namespace(namespace)
    admin = Authority(paths.STATE / "pki").files("admin")
    return await asyncio.to_thread(run, cluster, admin, namespace, template(pod), count)


def run(cluster: Cluster, user: Pair, namespace: str, pod: dict[str, Any], count: int) -> float:
    """Create copies of a pod as one user. Return the seconds that all requests took."""
    program = paths.STATE / "bare"
    build = [gobuild.go(), "build", "-o", str(program), "."]
    command(build, "Building the bare client", cwd=_SOURCE, timeout_s=_BUILD_SECONDS)
    file = paths.STATE / "bare-pod.json"
    file.write_text(json.dumps(pod), encoding="utf-8")
    words = [program, cluster.api_url, cluster.ca_file, user.certificate, user.key]
    words += [namespace, file, count, CONNECTIONS]
    done = command(
        [str(word) for word in words], "Creating pods with the bare client", timeout_s=_RUN_SECONDS
    )
    return float(done)
