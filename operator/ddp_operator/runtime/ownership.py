"""Decide which jobs this operator manages, and which children belong to a job."""

from ddp_operator.api.base import CONTROLLER_NAME
from ddp_operator.api.job import DDPJob
from ddp_operator.cluster.base import Manifest, owner_uids
from ddp_wire import contract


def is_foreign(job: Manifest) -> bool:
    """Return whether `spec.managedBy` of a job names another controller."""
    manager = (job.get("spec") or {}).get("managedBy")
    return bool(manager) and manager != CONTROLLER_NAME


def belongs(child: Manifest, job: DDPJob) -> bool:
    """Return whether a child's owner is the job. Labels are no proof, because users write them."""
    labels, uid = child["metadata"].get("labels") or {}, job.metadata.uid
    return labels.get(contract.LABEL_JOB_UID) == uid and uid in owner_uids(child)
