"""Ask the API server which versions of an API group it serves."""

from ddp_operator.cluster.kube.connection import ApiConnection


async def served_versions(connection: ApiConnection, group: str) -> tuple[str, ...]:
    """Return the versions of an API group as GROUP/VERSION; empty for an unknown group.

    Each authenticated user may read this document.

    Raises:
        ClusterError: The API server refused or did not answer.
    """
    found = await connection.get(f"/apis/{group}") or {}
    return tuple(str(one["groupVersion"]) for one in found.get("versions") or [])
