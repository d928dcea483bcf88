"""Build the URL paths of objects in the API server."""

from urllib.parse import quote

from ddp_operator.api.base import API_VERSION, KIND, PLURAL
from ddp_operator.builders.gangs.versions import KUEUE
from ddp_operator.builders.kinds import KINDS

NODE = "Node"
"""Kind of the Kubernetes nodes, which belong to no namespace."""
CONFIG_MAP = "ConfigMap"
WORKLOAD = "Workload"
"""Kind of the objects in which Kueue admits pods to a queue."""

_OTHERS = {
    KIND: (f"/apis/{API_VERSION}", PLURAL),
    NODE: ("/api/v1", "nodes"),
    "Event": ("/api/v1", "events"),
    "Lease": ("/apis/coordination.k8s.io/v1", "leases"),
    CONFIG_MAP: ("/api/v1", "configmaps"),
    WORKLOAD: (f"/apis/{KUEUE}", "workloads"),
    "Deployment": ("/apis/apps/v1", "deployments"),
}


def object_path(kind: str, namespace: str | None, name: str | None = None) -> str:
    """Return the path of an object, of all objects of a namespace, or of all namespaces."""
    child = KINDS.get(kind)
    root, plural = (child.root, child.plural) if child else _OTHERS[kind]
    middle = f"/namespaces/{quote(namespace)}" if namespace else ""
    return f"{root}{middle}/{plural}" + (f"/{quote(name)}" if name else "")
