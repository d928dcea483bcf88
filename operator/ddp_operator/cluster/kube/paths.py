"""Paths of objects in the API server."""

from urllib.parse import quote

from ddp_operator.api.base import API_VERSION, KIND, PLURAL

_RESOURCES = {
    KIND: (f"/apis/{API_VERSION}", PLURAL),
    "Pod": ("/api/v1", "pods"),
    "Service": ("/api/v1", "services"),
    "Event": ("/api/v1", "events"),
    "NetworkPolicy": ("/apis/networking.k8s.io/v1", "networkpolicies"),
    "Lease": ("/apis/coordination.k8s.io/v1", "leases"),
    "Deployment": ("/apis/apps/v1", "deployments"),
}


def object_path(kind: str, namespace: str | None, name: str | None = None) -> str:
    """Return the path of an object, or of all objects of a namespace, or of all namespaces."""
    root, plural = _RESOURCES[kind]
    middle = f"/namespaces/{quote(namespace)}" if namespace else ""
    return f"{root}{middle}/{plural}" + (f"/{quote(name)}" if name else "")
