"""`ddpjob run` removes the fields of a manifest that only a cluster can use."""

from ddp_operator.cli.local_checks import without_cluster_fields
from tests.operator.support import job_manifest


def test_local_run_ignores_managed_by_and_the_network_profile() -> None:
    """Another controller would never start it, and NCCL would look for devices of the cluster."""
    network = {"profile": "InfiniBand", "ncclDebug": "Info"}
    manifest = job_manifest(nodes=2, managedBy="example.com/other", network=network)
    found = without_cluster_fields(manifest)
    assert found == job_manifest(nodes=2, network={"ncclDebug": "Info"})
    assert manifest["spec"]["managedBy"] == "example.com/other", "the manifest does not change"


def test_manifest_without_cluster_fields_stays_unchanged_for_a_local_run() -> None:
    assert without_cluster_fields(job_manifest()) == job_manifest()
