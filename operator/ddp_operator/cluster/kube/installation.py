"""Check an installation of the operator without changing anything in the cluster."""

from http import HTTPStatus

from ddp_operator.api.base import API_GROUP, API_VERSION, KIND, PLURAL
from ddp_operator.cluster.base import ClusterError, Key, Manifest
from ddp_operator.cluster.kube.connection import ApiConnection
from ddp_operator.cluster.kube.paths import object_path

JOB: Manifest = {
    "apiVersion": API_VERSION,
    "kind": KIND,
    "metadata": {"name": "installation-test"},
    "spec": {"nodes": 1, "procsPerNode": 1, "command": ["true"], "suspend": True},
}
"""Sample job that the API server validates with a dry run and does not store."""
_DRY_RUN = {"dryRun": "All", "fieldValidation": "Strict"}


class InstallationError(Exception):
    """Error that describes a defect of an installation in one sentence."""


class InstallationClient(ApiConnection):
    """Client that checks whether jobs can be created and whether the operator is ready."""

    async def check_jobs(self, namespace: str) -> None:
        """Send a job to the API server as a dry run.

        Raises:
            InstallationError: The API server refuses the job, for example because the CRD is not
                installed.
        """
        path = object_path(KIND, namespace)
        try:
            await self.call("POST", path, body=JOB, query=_DRY_RUN)
        except ClusterError as error:
            # For a kind that it does not serve the API server names no namespace.
            if error.status == HTTPStatus.NOT_FOUND and "namespaces" not in str(error):
                raise InstallationError(f"the CRD {PLURAL}.{API_GROUP} is not installed") from error
            place = f"a {KIND} in the namespace {namespace}"
            raise InstallationError(f"{place} cannot be created: {error}") from error

    async def check_operator(self, deployment: Key) -> None:
        """Check that all replicas of the operator have the newest version and are ready.

        Raises:
            InstallationError: A replica has an older version or is not ready.
        """
        place = f"the Deployment {deployment[1]} in the namespace {deployment[0]}"
        try:
            found = await self.get(object_path("Deployment", *deployment))
        except ClusterError as error:
            raise InstallationError(f"{place} cannot be read: {error}") from error
        if found is None:
            raise InstallationError(f"the operator is not installed: {place} does not exist")
        wanted, ready = found["spec"]["replicas"], _ready_replicas(found)
        if wanted == 0:
            raise InstallationError(f"the operator does not run: {place} has 0 replicas")
        if ready < wanted:
            counts = f"{ready} of {wanted} replicas of its newest version are ready"
            raise InstallationError(f"the operator is not ready: {place}: {counts}")


def _ready_replicas(deployment: Manifest) -> int:
    """Return how many replicas are certainly both of the newest version and ready."""
    status = deployment.get("status") or {}
    if status.get("observedGeneration", 0) < deployment["metadata"]["generation"]:
        return 0
    # A replica of an older version may be the one that is not ready.
    return max(0, int(status.get("updatedReplicas", 0)) - int(status.get("unavailableReplicas", 0)))
