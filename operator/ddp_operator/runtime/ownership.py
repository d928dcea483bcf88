"""Decide which jobs this operator manages, and which children belong to a job."""

from ddp_operator.api.base import CONTROLLER_NAME
from ddp_operator.api.job import DDPJob
from ddp_operator.builders.kinds import KINDS
from ddp_operator.cluster.base import Manifest, owner_uids
from ddp_wire import contract


def is_foreign(job: Manifest) -> bool:
    """Return whether `spec.managedBy` of a job names another controller."""
    manager = (job.get("spec") or {}).get("managedBy")
    return bool(manager) and manager != CONTROLLER_NAME


def belongs(child: Manifest, job: DDPJob, kind: str = "Pod") -> bool:
    """Return whether a child's owner is the job. Labels are no proof, because users write them.

    Only a child that may outlive its job can have no owner. Then its label names the job.
    """
    labels, uid, owners = child["metadata"].get("labels") or {}, job.metadata.uid, owner_uids(child)
    owned = uid in owners or (KINDS[kind].outlives_job and not owners)
    return labels.get(contract.LABEL_JOB_UID) == uid and owned
