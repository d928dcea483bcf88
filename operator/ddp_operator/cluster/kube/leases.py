"""Read and write the Leases of an API server, for a leader election."""

from ddp_operator.cluster.base import Manifest
from ddp_operator.cluster.kube.connection import ApiConnection
from ddp_operator.cluster.kube.paths import object_path


class KubeLeases:
    """Access to the Leases of one API server."""

    def __init__(self, connection: ApiConnection) -> None:
        """Create an access that uses the given connection."""
        self._connection = connection

    async def get_lease(self, namespace: str, name: str) -> Manifest | None:
        """Implement `Leases.get_lease`."""
        return await self._connection.get(object_path("Lease", namespace, name))

    async def create_lease(self, lease: Manifest) -> Manifest:
        """Implement `Leases.create_lease`."""
        path = object_path("Lease", lease["metadata"]["namespace"])
        return await self._connection.call("POST", path, body=lease)

    async def update_lease(self, lease: Manifest) -> Manifest:
        """Implement `Leases.update_lease`."""
        metadata = lease["metadata"]
        if not metadata.get("resourceVersion"):
            raise ValueError(
                "metadata.resourceVersion must be set: without it the update would be unconditional"
            )
        path = object_path("Lease", metadata["namespace"], metadata["name"])
        return await self._connection.call("PUT", path, body=lease)
