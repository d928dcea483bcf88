"""Build the PersistentVolumeClaim of `spec.checkpoint.claimTemplate`."""

from typing import Any

from ddp_operator.api.claim import ClaimRetention
from ddp_operator.api.job import DDPJob
from ddp_operator.builders import names


def build_claim(job: DDPJob) -> dict[str, Any] | None:
    """Return the manifest of the claim of a job's template, or None for a job without template.

    The job owns the claim only with the retention Delete, so that the garbage collector deletes the
    claim together with the job. The operator itself never deletes a claim.
    """
    template = job.spec.checkpoint.claim_template if job.spec.checkpoint is not None else None
    if template is None:
        return None
    spec: dict[str, Any] = {
        "accessModes": [mode.value for mode in template.access_modes],
        "resources": {"requests": {"storage": template.size}},
    }
    if template.storage_class_name is not None:
        spec["storageClassName"] = template.storage_class_name
    metadata: dict[str, Any] = {
        "name": names.made_claim_name(job.metadata.name),
        "namespace": job.metadata.namespace,
        "labels": names.labels(job),
    }
    if template.when_deleted is ClaimRetention.DELETE:
        metadata["ownerReferences"] = [names.owner_reference(job)]
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata,
        "spec": spec,
    }
