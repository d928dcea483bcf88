"""`ddpjob run` removes the fields of a manifest that only a cluster can use."""

from ddp_operator.cli.local_checks import without_cluster_fields
from tests.operator.support import job_manifest


def test_local_run_has_no_other_controller_and_no_network_profile() -> None:
    """Another controller would never start it, and NCCL would look for devices of the cluster."""
    network = {"profile": "InfiniBand", "ncclDebug": "Info"}
    manifest = job_manifest(nodes=2, managedBy="example.com/other", network=network)
    found = without_cluster_fields(manifest)
    assert found == job_manifest(nodes=2, network={"ncclDebug": "Info"})
    assert manifest["spec"]["managedBy"] == "example.com/other", "the manifest does not change"


def test_other_manifests_stay_as_they_are() -> None:
    assert without_cluster_fields(job_manifest()) == job_manifest()
