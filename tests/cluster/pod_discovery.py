"""Targets for Prometheus with the labels that its own discovery of pods gives them.

Debian builds Prometheus without the discovery of pods. So the tests write the pods into a file that
Prometheus reads, with the labels of its documentation, and Prometheus applies the product's rules.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

_META = "__meta_kubernetes_"


def targets_of(pods: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one target per port of each container of each pod with an address."""
    return [target for pod in pods for target in _targets(pod)]


def _targets(pod: dict[str, Any]) -> Iterator[dict[str, Any]]:
    address = pod["status"].get("podIP")
    if not address:
        return
    labels = _pod_labels(pod)
    for container in pod["spec"]["containers"]:
        for port in container.get("ports", []):
            number = str(port["containerPort"])
            own = {
                f"{_META}pod_container_name": container["name"],
                f"{_META}pod_container_port_name": port.get("name", ""),
                f"{_META}pod_container_port_number": number,
            }
            yield {"targets": [f"{address}:{number}"], "labels": labels | own}


def _pod_labels(pod: dict[str, Any]) -> dict[str, str]:
    metadata = pod["metadata"]
    labels = {
        f"{_META}namespace": metadata["namespace"],
        f"{_META}pod_name": metadata["name"],
        f"{_META}pod_node_name": pod["spec"].get("nodeName", ""),
        f"{_META}pod_phase": pod["status"]["phase"],
        f"{_META}pod_ip": pod["status"]["podIP"],
        f"{_META}pod_uid": metadata["uid"],
    }
    for kind in ("label", "annotation"):
        for name, value in metadata.get(f"{kind}s", {}).items():
            labels[f"{_META}pod_{kind}_{re.sub('[^a-zA-Z0-9_]', '_', name)}"] = value
    return labels
