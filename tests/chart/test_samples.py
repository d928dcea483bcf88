"""Test that the sample jobs mount the claim among the samples."""

import yaml

from tests.harness.install import ROOT

SAMPLES = ROOT / "manifests" / "samples"


def test_sample_jobs_use_the_claim_of_the_samples() -> None:
    claim = yaml.safe_load((SAMPLES / "claim.yaml").read_text("utf-8"))
    assert (claim["kind"], claim["spec"]["accessModes"]) == (
        "PersistentVolumeClaim",
        ["ReadWriteMany"],
    )
    documents = [
        d for f in SAMPLES.glob("*.yaml") for d in yaml.safe_load_all(f.read_text("utf-8"))
    ]
    named = {
        document["spec"]["checkpoint"]["claimName"]
        for document in documents
        if document["kind"] == "DDPJob" and "claimName" in document["spec"].get("checkpoint", {})
    }
    assert named == {claim["metadata"]["name"]}
    assert "manifests/samples/claim.yaml" in (ROOT / "README.md").read_text("utf-8")


def test_notes_name_no_file_that_the_packaged_chart_lacks() -> None:
    notes = (ROOT / "charts" / "templates" / "NOTES.txt").read_text("utf-8")
    assert ".yaml" not in notes
    assert "kind: DDPJob" in notes
